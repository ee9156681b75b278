"""The backbone `tiny`: a trained 2.3 M parameter SD3 transformer on 32 x 32 images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor
from torch.nn import Module, Parameter

from headwater import adapters, randomness
from headwater.protocols import LoadContext
from headwater.types import Prompt, Request, at_least_float32
from headwater.validators import above, at_least
from headwater_tiny.draw import SIZE
from headwater_tiny.model import LATENT, Config, TinyModel, facts, load_model, sigma_grid
from headwater_tiny.text import tokenize

if TYPE_CHECKING:
    from headwater.composition import Run

TARGETS = (
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
    *("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
)
"""Linear layers that a LoRA adapts: attention and MLP, of the image and of the text."""
UNUSED = tuple(
    f"transformer_blocks.{Config().layers - 1}.attn.{name}"
    for name in ("add_q_proj", "norm_added_q")
)
"""The last block drops its text output, so the queries of the text there reach nothing."""


@attrs.frozen(eq=False)
class TinyConditioning:
    """Embedded prompts and negative prompts of B samples."""

    states: Tensor
    """(B, 12, d)"""
    pooled: Tensor
    """(B, d)"""
    negative_states: Tensor
    """(B, 12, d)"""
    negative_pooled: Tensor
    """(B, d)"""

    def __len__(self) -> int:
        return len(self.states)

    def index(self, indices: Sequence[int]) -> TinyConditioning:
        """Take the rows `indices`, repeats allowed."""
        rows = list(indices)
        return TinyConditioning(
            self.states[rows],
            self.pooled[rows],
            self.negative_states[rows],
            self.negative_pooled[rows],
        )


@attrs.define(eq=False)
class Tiny:
    """A small text-to-image model with its weights. Text embedder and decoder are frozen."""

    guidance_kind: ClassVar[Literal["classifier-free"]] = "classifier-free"
    loads_on_meta: ClassVar[bool] = True

    train: Literal["lora", "full"] = "lora"
    """A LoRA on the attention and MLP layers, or the whole transformer."""
    rank: int = attrs.field(default=8, validator=at_least(1))
    """Rank of the LoRA."""
    alpha: float = attrs.field(default=16.0, validator=above(0))
    """The LoRA is scaled by alpha / rank."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Of the weights. A LoRA on bfloat16 weights is float32."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """Whether the unconditional evaluation carries a gradient too."""

    network: Module = attrs.field(init=False, default=None)
    _model: TinyModel = attrs.field(init=False, default=None)
    _guidance: float = attrs.field(init=False, default=1.0)
    _device: str = attrs.field(init=False, default="cpu")

    def load(self, context: LoadContext) -> None:
        """Load the weights and put a fresh LoRA on, if one is trained."""
        self._guidance, self._device = context.guidance, context.device
        model = load_model(self._dtype).to(context.device)
        model.requires_grad_(requires_grad=False)
        if self.train == "lora":
            adapters.train_lora(
                model.transformer, self.rank, self.alpha, TARGETS, context.seed, UNUSED
            )
        else:
            adapters.train_full(model.transformer, UNUSED)
        self._model, self.network = model, model.transformer

    def problems(self, run: Run) -> list[str]:
        """A size or a prompt that the model was not made for."""
        table = run.file.rollout
        found = []
        try:
            self.shape(Request(table.height, table.width))
        except ValueError as error:
            found.append(str(error))
        for prompt in (*run.prompts, *run.evaluation_prompts):
            try:
                tokenize([prompt.text, prompt.negative])
            except ValueError as error:
                return [*found, str(error)]
        return found

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """Two forwards under guidance; two backwards, or one if only one carries a gradient."""
        if guidance == 1:
            return 1, 1
        return 2, 2 if self.guidance_gradient == "both" else 1

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> TinyConditioning:
        """Embed prompts. ValueError names a word that is not in the vocabulary."""
        given = self._model.encode_text([prompt.text for prompt in prompts])
        negative = self._model.encode_text([prompt.negative for prompt in prompts])
        return TinyConditioning(*given, *negative)

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: TinyConditioning) -> Tensor:
        """Guided velocity (B, 16, 4, 4), at least float32.

        x: (B, 16, 4, 4). sigma: (B,).
        """
        given = (conditioning.states, conditioning.pooled)
        if self._guidance == 1:
            return self._evaluate(x, sigma, *given)
        negative = (conditioning.negative_states, conditioning.negative_pooled)
        if self.guidance_gradient == "both":
            both = [torch.cat(pair) for pair in zip(given, negative, strict=True)]
            doubled = self._evaluate(torch.cat([x, x]), torch.cat([sigma, sigma]), *both)
            v, plain = doubled.chunk(2)
        else:
            v = self._evaluate(x, sigma, *given)
            with torch.no_grad():
                plain = self._evaluate(x, sigma, *negative)
        return plain + self._guidance * (v - plain)

    def _evaluate(self, x: Tensor, sigma: Tensor, states: Tensor, pooled: Tensor) -> Tensor:
        """One forward of the network; diffusers' time is 1000 sigma."""
        v: Tensor = self.network(
            hidden_states=x.to(self._dtype),
            encoder_hidden_states=states,
            pooled_projections=pooled,
            timestep=sigma * 1000,
            return_dict=False,
        )[0]
        return at_least_float32(v)

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, 32, 32) in [0, 1], smooth, at least float32."""
        return at_least_float32(self._model.autoencoder.decode(latents.to(self._dtype)))

    def shape(self, request: Request) -> tuple[int, ...]:
        """(16, 4, 4). ValueError for any size but 32 x 32."""
        if (request.height, request.width) != (SIZE, SIZE):
            raise ValueError(
                f"tiny makes images of {SIZE} x {SIZE}, not {request.height} x {request.width}; "
                f"set [rollout] height = {SIZE} and width = {SIZE}"
            )
        return LATENT

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32 from 1 to 0, on the grid that the model samples best on."""
        return sigma_grid(steps, Config().shift)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """(B, *shape), each sample from its own seed; float32 cast to at least float32."""
        dtype = torch.float64 if self.dtype == "float64" else torch.float32
        return randomness.noise(shape, seeds, dtype, self._device)

    def trainable(self) -> Mapping[str, Parameter]:
        """The trained parameters of the transformer, by name."""
        return adapters.trainable(self._model.transformer)

    def reference(self) -> AbstractContextManager[None]:
        """Within it the LoRA is off. ValueError under full training."""
        return adapters.adapters_off(self._model.transformer)

    def export(self, path: Path) -> None:
        """Write a folder: a LoRA as diffusers' SD3 pipeline loads it, or the transformer."""
        from diffusers import StableDiffusion3Pipeline
        from peft import get_peft_model_state_dict

        network: Any = self._model.transformer
        if self.train == "full":
            network.save_pretrained(path / "transformer")
            return
        config = network.peft_config["default"].to_dict()
        StableDiffusion3Pipeline.save_lora_weights(
            path,
            transformer_lora_layers=get_peft_model_state_dict(network),
            transformer_lora_adapter_metadata=config,
        )

    def describe(self) -> Mapping[str, Any]:
        """Sizes and parameter counts, from configuration alone."""
        return {**facts(Config()), "train": self.train, "dtype": self.dtype}

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype
