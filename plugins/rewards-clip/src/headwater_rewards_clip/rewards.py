"""The rewards `hpsv2.1`, `pickscore`, `clipscore` and `aesthetic`, all differentiable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.errors import PluginError
from headwater.protocols import LoadContext
from headwater.types import Batch
from headwater_rewards_clip import preprocessing, scores, weights
from headwater_rewards_clip.aesthetic import AestheticHead, aesthetic_score, affine_head, in_dtype
from headwater_rewards_clip.architecture import VIT_H_14, VIT_L_14, Architecture
from headwater_rewards_clip.prompt_features import PromptFeatures
from headwater_rewards_clip.tokens import holds_tokenizer, load_tokenizer

if TYPE_CHECKING:
    from headwater.composition import Run

HPS = weights.Release(
    hub="xswu/HPSv2",
    file="HPS_v2.1_compressed.pt",
    size="about 2 GB, 986 million weights",
    sizes=VIT_H_14,
)
PICKSCORE = weights.Release("yuvalkirstain/PickScore_v1", "", "3.94 GB", VIT_H_14)
CLIP_L = weights.Release("openai/clip-vit-large-patch14", "", "1.71 GB", VIT_L_14)


@attrs.define(eq=False)
class ClipTower:
    """A CLIP model, and images to its features."""

    differentiable: ClassVar[bool] = True
    release: ClassVar[weights.Release]

    model: str
    """Checkpoint file (open_clip's or transformers' names), folder of transformers, or hub id."""
    architecture: Literal["stated"] | Architecture = "stated"
    """Sizes of a checkpoint file; "stated" are the released model's. A folder states its own."""
    rounding: preprocessing.Rounding = "none"
    """What is rounded to 8 bits: nothing, the image ("levels"), or the resized one too
    ("two-pass", as PIL resizes). The gradient is always that of "none"."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Of the weights. Pixels are prepared and scores formed in at least float32."""

    _clip: Any = attrs.field(init=False, default=None)

    @abstractmethod
    def pixels(self, images: Tensor, size: int) -> Tensor:
        """Normalised pixels (B, 3, size, size) of images in [0, 1]."""

    def problems(self, run: Run) -> list[str]:
        """Paths that are wrong, before weights load. Weights on the hub are not looked up."""
        problem = weights.path_problem(self.model, self.release)
        if problem:
            return [f"model: {problem}"]
        if self.architecture != "stated" and not weights.is_file(self.model, self.release):
            return ["architecture: it is for a checkpoint file; this model's config.json states it"]
        return []

    def load(self, context: LoadContext) -> None:
        """Load the frozen model. PluginError says in one paragraph what is missing or wrong."""
        sizes = None if isinstance(self.architecture, str) else self.architecture
        try:
            clip = weights.load_clip(self.model, self.release, sizes, getattr(torch, self.dtype))
            self._clip = clip.to(context.device)
            self._prepare(context)
        except ValueError as error:
            raise PluginError(str(error)) from error

    def _prepare(self, context: LoadContext) -> None:
        """What else a reward loads."""

    def features(self, images: Tensor) -> Tensor:
        """Features (B, D) of images (B, 3, H, W), which are clamped to [0, 1]; not normalised."""
        if self._clip is None:
            raise ValueError(f"{type(self).__name__} is not loaded; call load first")
        size = self._clip.config.vision_config.image_size
        pixels = self.pixels(images.to(self._clip.device).clamp(0, 1), size)
        return scores.image_features(self._clip, pixels)

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """`features`, for measures of how different images are."""
        return self.features(images)


@attrs.define(eq=False)
class ClipReward(ClipTower):
    """The cosine of an image and its prompt, in a declared scale."""

    needs_text: ClassVar[bool] = True
    cleans_text: ClassVar[bool] = False

    tokenizer: str = ""
    """Folder or hub id of a CLIP tokenizer; empty for that of the model's local folder, or CLIP's
    own where there is none."""
    scale: scores.Scale = "cosine"
    """What the score is: the raw cosine, 100 times it, or a form of s cos, s = exp(logit_scale)."""

    _texts: PromptFeatures = attrs.field(init=False, default=None)

    def problems(self, run: Run) -> list[str]:
        """Wrong paths, the tokenizer's too."""
        found = super().problems(run)
        source = self.tokenizer
        if source and not weights.is_hub_id(source) and not Path(source).expanduser().is_dir():
            found.append(f"tokenizer: no folder {source!r}, and it is no hub id (owner/name)")
        return found

    def _prepare(self, context: LoadContext) -> None:
        source = self.tokenizer
        folder = Path(self.model).expanduser()
        if not source and folder.is_dir() and holds_tokenizer(folder):
            source = str(folder)
        tokenizer = load_tokenizer(source, clean=self.cleans_text)
        self._texts = PromptFeatures(self._clip, tokenizer)
        self._texts.announce([prompt.text for prompt in context.prompts])

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) scores in the reward's scale, differentiable in images (B, 3, H, W)."""
        return self.rate(images, [prompt.text for prompt in batch.prompts])

    def rate(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """(B,) scores of images (B, 3, H, W) and their B prompts."""
        if len(texts) != len(images):
            raise ValueError(f"expected a prompt an image, got {len(texts)} for {len(images)}")
        found = self.features(images)
        value = scores.cosine(found, self._texts.get(texts).to(found))
        return scores.scaled(value, self._clip.logit_scale, self.scale).to(images.device)


@attrs.define(eq=False)
class HpsV21(ClipReward):
    """Human preference score v2.1 (Wu et al., arXiv 2306.09341): cosines of about .15 to .33."""

    release: ClassVar[weights.Release] = HPS
    margin = scores.StatedMargin(0.55)
    cleans_text: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2306.09341"

    model: str = HPS.hub
    """HPS_v2.1_compressed.pt or its safetensors form, a folder of transformers, or a hub id."""
    antialias: bool = True
    """Smooth before shrinking; false is what torchvision up to 0.16 did."""

    def __attrs_post_init__(self) -> None:
        """ValueError for settings that exclude each other."""
        if self.rounding.startswith("two-pass") and not self.antialias:
            raise ValueError(f'rounding "{self.rounding}" is PIL\'s, with antialias = true only')

    def pixels(self, images: Tensor, size: int) -> Tensor:
        """Longest side to `size`, padded; see `preprocessing.hps_pixels`."""
        return preprocessing.hps_pixels(
            images, size, antialias=self.antialias, rounding=self.rounding, always_pad=True
        )


@attrs.define(eq=False)
class PickScore(ClipReward):
    """PickScore v1 (Kirstain et al., arXiv 2305.01569): cosines of about .17 to .24."""

    release: ClassVar[weights.Release] = PICKSCORE
    margin = scores.StatedMargin(0.4)
    paper: ClassVar[str] = "arXiv 2305.01569"

    model: str = PICKSCORE.hub
    """A folder of transformers, a checkpoint file, or a hub id."""

    def pixels(self, images: Tensor, size: int) -> Tensor:
        """As transformers' CLIPImageProcessor; see `preprocessing.transformers_pixels`."""
        return preprocessing.transformers_pixels(images, size, rounding=self.rounding)


@attrs.define(eq=False)
class ClipScore(ClipReward):
    """CLIPScore (Hessel et al., arXiv 2104.08718) by OpenAI's L/14: cosines of about .2 to .35."""

    release: ClassVar[weights.Release] = CLIP_L
    margin = scores.StatedMargin(0.5)
    paper: ClassVar[str] = "arXiv 2104.08718"

    model: str = CLIP_L.hub
    """A folder of transformers, a checkpoint file, or a hub id."""
    resize: Literal["bilinear", "bicubic"] = "bilinear"
    """bilinear on the tensor (FlowBP, DiffusionNFT), or OpenAI's own bicubic."""

    def __attrs_post_init__(self) -> None:
        """ValueError for settings that exclude each other."""
        if self.rounding.startswith("two-pass") and self.resize == "bilinear":
            raise ValueError(f'rounding "{self.rounding}" is PIL\'s, with resize = "bicubic" only')

    def pixels(self, images: Tensor, size: int) -> Tensor:
        """See `preprocessing.bilinear_pixels` and `preprocessing.openai_pixels`."""
        if self.resize == "bilinear":
            return preprocessing.bilinear_pixels(images, size, rounding=self.rounding)
        return preprocessing.openai_pixels(images, size, rounding=self.rounding)


@attrs.define(eq=False)
class Aesthetic(ClipTower):
    """LAION's aesthetic predictor, about 1 to 10; it never sees the prompt."""

    needs_text: ClassVar[bool] = False
    release: ClassVar[weights.Release] = CLIP_L
    margin: ClassVar[float | None] = 10.0

    model: str = CLIP_L.hub
    """CLIP L/14: a folder of transformers, a checkpoint file, or a hub id."""
    head: str = ""
    """File of the five layers, `layers.N.weight` and `.bias`; empty for the released
    sac+logos+ava1-l14-linearMSE.pth in the folder ~/.cache/headwater."""

    _head: AestheticHead = attrs.field(init=False, default=None)

    def problems(self, run: Run) -> list[str]:
        """Wrong paths, the head's too."""
        found = super().problems(run)
        if self.head and not Path(self.head).expanduser().is_file():
            found.append(f"head: no file {self.head!r}. {weights.HEAD_MISSING}")
        return found

    def load(self, context: LoadContext) -> None:
        """Load the layers, then the CLIP model, so that a missing small file is told first."""
        try:
            head = affine_head(weights.read_head(self.head))
        except ValueError as error:
            raise PluginError(str(error)) from error
        self._head = in_dtype(head, getattr(torch, self.dtype), context.device)
        super().load(context)

    def _prepare(self, context: LoadContext) -> None:
        head = self._head
        wanted = self._clip.config.projection_dim
        if len(head.weight) != wanted:
            raise ValueError(
                f"the aesthetic layers take features of {len(head.weight)} numbers, this CLIP "
                f"model gives {wanted}"
            )
        self._clip.text_model = None  # it is never read

    def pixels(self, images: Tensor, size: int) -> Tensor:
        """As OpenAI's CLIP; see `preprocessing.openai_pixels`."""
        return preprocessing.openai_pixels(images, size, rounding=self.rounding)

    @hookimpl
    def score(self, images: Tensor) -> Tensor:
        """(B,) scores, differentiable in images (B, 3, H, W)."""
        return self.rate(images)

    def rate(self, images: Tensor) -> Tensor:
        """(B,) scores of images (B, 3, H, W)."""
        return aesthetic_score(self.features(images), self._head).to(images.device)
