"""The reward `colourfulness`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from torch import Tensor

from headwater import hookimpl
from headwater.protocols import LoadContext
from headwater.validators import above, at_least
from headwater_colourfulness.measure import colourfulness

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.frozen(eq=False)
class Colourfulness:
    """Colourfulness of an image, in hundredths of Hasler and Süsstrunk's scale.

    Their seven words stand at 0 (not colourful), .15, .33, .45, .59, .82 and 1.09 (extremely).
    It reads no prompt and any size. Nothing keeps a model from painting everything in loud
    colours: give it a `ceiling`, or a second reward beside it.
    """

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = 0.82  # "highly colourful"
    loads_on_meta: ClassVar[bool] = True
    paper: ClassVar[str] = "https://doi.org/10.1117/12.477378"
    title: ClassVar[str] = "Measuring colourfulness in natural images"

    ceiling: float = attrs.field(default=1.09, validator=above(0))
    """More colour than this gains nothing, and has no gradient; the default is "extremely"."""
    pool: int = attrs.field(default=1, validator=at_least(1))
    """Side of the squares of pixels that are averaged first, so that fine colour noise is not
    colour; 1 takes the pixels as they are. It must divide height and width."""

    def load(self, context: LoadContext) -> None:
        """Nothing to load."""

    def problems(self, run: Run) -> list[str]:
        """A pool that does not divide the run's images."""
        height, width = run.file.rollout.height, run.file.rollout.width
        if height % self.pool or width % self.pool:
            return [f"pool = {self.pool} does not divide images of {height} x {width}"]
        return []

    @hookimpl
    def score(self, images: Tensor) -> Tensor:
        """(B,) of images (B, 3, H, W) in [0, 1]."""
        return colourfulness(images, self.pool).clamp(max=self.ceiling)
