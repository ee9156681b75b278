"""The backbone of a diffusers pipeline; a family fills in what only it knows."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor
from torch.nn import Module, Parameter

from headwater import adapters, randomness
from headwater.families import blank, export, folder
from headwater.families.embeddings import Embedding, EmbeddingCache, fingerprint, stacked
from headwater.families.encoded import Encoded, same_shapes
from headwater.families.preparation import prepared
from headwater.protocols import LoadContext
from headwater.types import Prompt, Request, at_least_float32
from headwater.validators import above, at_least

if TYPE_CHECKING:
    from headwater.composition import Run

Dtype = Literal["bfloat16", "float16", "float32", "float64"]


@attrs.define(eq=False)
class FamilyBackbone:
    """Loading, freezing, LoRA, guidance, embeddings and export of any diffusers family."""

    loads_on_meta: ClassVar[bool] = True
    guidance_kind: ClassVar[Literal["none", "embedded", "classifier-free"]]
    pipelines: ClassVar[tuple[str, ...]]
    """Class names that `model_index.json` may state."""
    encoders: ClassVar[tuple[str, ...]]
    """Text encoders and tokenizers: needed to embed prompts, then freed."""
    targets: ClassVar[tuple[str, ...]]
    """Linear layers that a LoRA adapts."""
    package: ClassVar[str]
    """Its `released.json` holds configurations, so that plans of known models need no network."""

    model: str
    """Folder of a diffusers pipeline, or a hub id."""
    train: Literal["lora", "full"] = "lora"
    """A LoRA on the attention layers and, where a family names them, MLPs; or everything."""
    rank: int = attrs.field(default=32, validator=at_least(1))
    """Rank of the LoRA."""
    alpha: float = attrs.field(default=64.0, validator=above(0))
    """The LoRA is scaled by alpha / rank."""
    dtype: Dtype = "bfloat16"
    """Of the weights. A LoRA on half weights is float32."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """Whether the unconditional evaluation carries a gradient too."""
    checkpointing: bool = False
    """Recompute the blocks' activations in the backward pass."""
    attention: str = ""
    """Attention backend of diffusers, `flash` for instance; empty for its default."""
    compile: bool = False
    """torch.compile the transformer."""
    vae_tiling: bool = False
    """Decode in tiles."""
    vae_slicing: bool = False
    """Decode one image at a time."""
    vae_offload: bool = False
    """Keep the decoder on the CPU but while it decodes."""
    embeddings: str = ""
    """Folder that keeps prompt embeddings between runs; empty keeps them in memory only."""

    network: Module = attrs.field(init=False, default=None)
    _vae: Any = attrs.field(init=False, default=None)
    _cache: EmbeddingCache = attrs.field(init=False, default=None)
    _folder: Path = attrs.field(init=False, default=None)
    _device: str = attrs.field(init=False, default="cpu")
    _guidance: float = attrs.field(init=False, default=1.0)

    # What a family brings.

    @abstractmethod
    def embed(self, pipeline: Any, texts: list[str]) -> list[Embedding]:
        """Embeddings of prompts by the family's own pipeline, one mapping a prompt."""

    @abstractmethod
    def longest(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the embedding of the longest prompt, for plans."""

    @abstractmethod
    def evaluate(self, x: Tensor, sigma: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """One forward of the network: v = eps - data, (B, *latent)."""

    @abstractmethod
    def decode_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [-1, 1]."""

    @abstractmethod
    def shape(self, request: Request) -> tuple[int, ...]:
        """Shape of one latent. ValueError where the size cannot be made."""

    @abstractmethod
    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32 on the CPU, from 1 to 0."""

    def made_with(self) -> Mapping[str, str]:
        """What beside weights and dtype the embeddings depend on: length, template."""
        return {}

    def lora_targets(self) -> tuple[str, ...]:
        """Ends of the names of the layers that a LoRA adapts."""
        return self.targets

    def unused(self) -> tuple[str, ...]:
        """Modules and parameters of the transformer that do not reach its output."""
        return ()

    # What all share.

    def config(self, component: str) -> Mapping[str, Any]:
        """Configuration of a component, without weights."""
        return folder.component_config(self.model, component, self.package)

    def problems(self, run: Run) -> list[str]:
        """What is wrong with the folder, the size or the guidance, before weights load."""
        parts = ("transformer", "vae", "scheduler", *self.encoders)
        found = folder.problems_of(self.model, self.pipelines, parts)
        if found:
            return found
        table = run.file.rollout
        try:
            self.sigmas(table.steps, self.shape(Request(table.height, table.width)))
            found += self.guidance_problems(table.guidance)
        except ValueError as error:
            found.append(str(error))
        return found

    def guidance_problems(self, guidance: float) -> list[str]:
        """Guidance that this model cannot take."""
        return []

    @property
    def guided(self) -> bool:
        """Whether a velocity takes two evaluations."""
        return self.guidance_kind == "classifier-free" and self._guidance != 1

    def load(self, context: LoadContext) -> None:
        """Embed the run's prompts, free the text encoders, then load transformer and decoder."""
        self._device, self._guidance = context.device, context.guidance
        if context.device == "meta":
            self._load_blank(context.seed)
            return
        self._folder = folder.downloaded(self.model)
        kept = Path(self.embeddings).expanduser() if self.embeddings else None
        made_by = {
            "encoder weights": fingerprint(self._folder, self.encoders),
            "dtype": self.dtype,
            **self.made_with(),
        }
        self._cache = EmbeddingCache(kept, made_by)
        if context.prompts:
            self._embeddings([p.text for p in context.prompts])
            if self.guided:
                self._embeddings([p.negative for p in context.prompts])
        pipeline = self._pipeline(dict.fromkeys(self.encoders))
        home = "cpu" if self.vae_offload else context.device
        self._vae = pipeline.vae.to(home).requires_grad_(requires_grad=False)
        if self.vae_tiling:
            self._vae.enable_tiling()
        if self.vae_slicing:
            self._vae.enable_slicing()
        self.network = prepared(self, pipeline.transformer.to(context.device), context.seed)

    def notes(self) -> list[str]:
        """Which prompts were encoded, and why."""
        return [] if self._cache is None else [self._cache.report()]

    def _load_blank(self, seed: int) -> None:
        """Shapes without data, from configuration alone; float16 is counted as bfloat16."""
        self.dtype = "bfloat16" if self.dtype == "float16" else self.dtype
        self.compile, self.attention = False, ""
        self._vae = blank.module(self.config("vae"), self._dtype)
        with torch.device("meta"):
            network = blank.module(self.config("transformer"), self._dtype)
            self.network = prepared(self, network, seed)

    def _pipeline(self, without: Mapping[str, None]) -> Any:
        """The family's pipeline with some components left out."""
        index = folder.model_index(str(self._folder))
        missing = {name: None for name in without if name in index}
        cls = folder.pipeline_class(self._folder)
        with folder.readable(self._folder):
            return cls.from_pretrained(self._folder, dtype=self._dtype, **missing)

    def _embeddings(self, texts: Sequence[str]) -> list[Embedding]:
        with self._encoding() as encode:
            return self._cache.get(texts, encode)

    @contextmanager
    def _encoding(self) -> Iterator[Any]:
        """A function that embeds prompts; the text encoders live only while it is used."""
        loaded: list[Any] = []

        @torch.no_grad()
        def encode(texts: list[str]) -> list[Embedding]:
            if not loaded:
                loaded.append(self._pipeline({"transformer": None, "vae": None}))
                loaded[0].to(self._device)
            return self.embed(loaded[0], texts)

        try:
            yield encode
        finally:
            if loaded:
                loaded.clear()
                gc.collect()

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """Two forwards under classifier-free guidance; two backwards, or one if asked for."""
        if guidance == 1 or self.guidance_kind != "classifier-free":
            return 1, 1
        return 2, 2 if self.guidance_gradient == "both" else 1

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Encoded:
        """Embedded prompts, from the cache where they are there."""
        if self._device == "meta":
            text = blank.embeddings(self.longest(), len(prompts), self._dtype)
            return Encoded(text, text if self.guided else None)
        given = stacked(self._embeddings([p.text for p in prompts]), self._device)
        if not self.guided:
            return Encoded(given, None)
        negative = self._embeddings([p.negative for p in prompts])
        return Encoded(given, stacked(negative, self._device))

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Encoded) -> Tensor:
        """Guided velocity (B, *latent), at least float32."""
        if self.vae_offload:
            self._vae.to("cpu")  # a decoder's graph is gone by the next velocity
        x = x.to(self._dtype)
        given, negative = conditioning.given, conditioning.negative
        if negative is None:
            return at_least_float32(self.evaluate(x, sigma, given))
        if self.guidance_gradient == "both" and same_shapes(given, negative):
            both = {name: torch.cat([given[name], negative[name]]) for name in given}
            doubled = self.evaluate(torch.cat([x, x]), torch.cat([sigma, sigma]), both)
            v, plain = at_least_float32(doubled).chunk(2)
        else:
            v = at_least_float32(self.evaluate(x, sigma, given))
            with torch.set_grad_enabled(
                self.guidance_gradient == "both" and torch.is_grad_enabled()
            ):
                plain = at_least_float32(self.evaluate(x, sigma, negative))
        return self.guide(v, plain)

    def guide(self, v: Tensor, plain: Tensor) -> Tensor:
        """Classifier-free guidance."""
        return plain + self._guidance * (v - plain)

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1], at least float32."""
        images = self.decode_latents(self._vae.to(latents.device), latents.to(self._dtype))
        return at_least_float32(images / 2 + 0.5).clamp(0, 1)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """(B, *shape), each sample from its own seed."""
        dtype = torch.float64 if self.dtype == "float64" else torch.float32
        return randomness.noise(shape, seeds, dtype, self._device)

    def trainable(self) -> Mapping[str, Parameter]:
        """The trained parameters of the transformer, by name."""
        return adapters.trainable(self.network)

    def reference(self) -> AbstractContextManager[None]:
        """Within it the LoRA is off. ValueError under full training."""
        return adapters.adapters_off(self.network)

    def export(self, path: Path) -> None:
        """Write a LoRA that the family's pipeline loads, or the transformer's folder."""
        if self.train == "full":
            export.export_full(self.network, path)
        else:
            export.export_lora(folder.pipeline_class(self._folder), self.network, path)

    def describe(self) -> Mapping[str, Any]:
        """Configurations, and parameter counts by the meta device."""
        return {
            "model": self.model,
            "train": self.train,
            "dtype": self.dtype,
            "transformer": dict(self.config("transformer")),
        }

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype
