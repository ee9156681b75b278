"""The rewards `tiny-preference`, learned and differentiable, and `tiny-detector`, of rules."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import torch
from PIL import Image
from torch import Tensor

from headwater import hookimpl
from headwater.protocols import LoadContext
from headwater.types import Batch
from headwater.validators import in_range
from headwater_tiny.detector import judge
from headwater_tiny.draw import SIZE
from headwater_tiny.grammar import parse
from headwater_tiny.preference import MARGIN, PreferenceScorer, load_preference
from headwater_tiny.text import tokenize

if TYPE_CHECKING:
    from headwater.composition import Run


def _unreadable(run: Run, plugin: object, read: Callable[[str], object]) -> list[str]:
    """What is wrong with a size or with the first prompt that is no sentence of the grammar."""
    table = run.file.rollout
    if (table.height, table.width) != (SIZE, SIZE):
        return [f"it judges images of {SIZE} x {SIZE}, not {table.height} x {table.width}"]
    trained = any(named.plugin is plugin for named in run.rewards.values())
    prompts = (*(run.prompts if trained else ()), *run.evaluation_prompts)
    for prompt in prompts:
        try:
            read(prompt.text)
        except ValueError as error:
            return [f"it knows only the tiny model's prompts: {error}"]
    return []


def _check(images: Tensor, who: str) -> None:
    if tuple(images.shape[1:]) != (3, SIZE, SIZE):
        raise ValueError(f"{who} judges images (B, 3, {SIZE}, {SIZE}), got {tuple(images.shape)}")


@attrs.define(eq=False)
class TinyPreference:
    """A learned judge of image and prompt: a perfect image about 1, one flaw 0, more -1."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = MARGIN
    loads_on_meta: ClassVar[bool] = True

    dtype: Literal["float32", "float64"] = "float32"
    """Of the scorer's weights and arithmetic."""
    _scorer: PreferenceScorer = attrs.field(init=False, default=None)

    def load(self, context: LoadContext) -> None:
        """Load the frozen scorer."""
        self._scorer = load_preference(getattr(torch, self.dtype)).to(context.device)

    def problems(self, run: Run) -> list[str]:
        """A size or a prompt that it was not made for."""
        return _unreadable(run, self, lambda text: tokenize([text]))

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) scores in (-2, 2), smooth in images (B, 3, 32, 32)."""
        _check(images, "tiny-preference")
        texts = [prompt.text for prompt in batch.prompts]
        return self._scorer(images.to(getattr(torch, self.dtype)), texts)


@attrs.frozen(eq=False)
class TinyDetector:
    """Rules: whether an image shows what its prompt asks for."""

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = None

    measure: Literal["correct", "fraction"] = "correct"
    """1 only where everything is right, or the fraction of the demands that are met."""

    def load(self, context: LoadContext) -> None:
        """Nothing to load."""

    def problems(self, run: Run) -> list[str]:
        """A size or a prompt that it was not made for."""
        return _unreadable(run, self, parse)

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) in [0, 1] for images (B, 3, 32, 32)."""
        _check(images, "tiny-detector")
        verdict = judge(images, [prompt.text for prompt in batch.prompts])
        value = verdict.correct if self.measure == "correct" else verdict.fraction
        return value.to(images.device)


@attrs.frozen(eq=False)
class TinyJpegSize:
    """Kilobytes of the image as JPEG (Black et al., arXiv 2305.13301): how compressible it is."""

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = None

    prefer: Literal["large", "small"] = "large"
    """Whether a large file scores high (incompressibility) or a small one."""
    quality: int = attrs.field(default=95, validator=in_range(1, 100))
    """JPEG quality."""

    @hookimpl
    def score(self, images: Tensor) -> Tensor:
        """(B,) kilobytes, negative where small files are preferred; images (B, 3, 32, 32)."""
        _check(images, "tiny-jpeg-size")
        sizes = [_kilobytes(image, self.quality) for image in images.detach().float().cpu()]
        sign = 1 if self.prefer == "large" else -1
        return sign * torch.tensor(sizes, device=images.device)


def _kilobytes(image: Tensor, quality: int) -> float:
    """Length of a JPEG file in units of 1000 bytes."""
    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(levels.permute(1, 2, 0).numpy()).save(file, format="JPEG", quality=quality)
    return len(file.getvalue()) / 1000
