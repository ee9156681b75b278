"""The estimator `surrogate`: the four design axes as free keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs
from torch import Generator

from headwater import hookimpl
from headwater.types import Rollout, Surrogate
from headwater.validators import above, at_least, in_range
from headwater_flowbp.builders import METRICS, RESIDUALS, Axes, Place, Split, build, check_cap


@attrs.frozen(eq=False)
class Active:
    """Which steps are evaluated with gradient."""

    place: Place = "late-biased"
    """A late-biased draw, evenly spaced supports of a segment, or a stride from a random step."""
    count: int = attrs.field(default=3, validator=at_least(1))
    """Active steps in all; with "supports", the supports of a segment."""
    late_bias: float = attrs.field(default=2.0, validator=at_least(0))
    """Power of the position under "late-biased"."""
    supports: int = attrs.field(default=2, validator=at_least(1))
    """Supports of a segment that are active, from its start."""
    support_scale: float = attrs.field(default=0.25, validator=in_range(0, 1))
    """Factor of the rows of active supports other than the start."""


@attrs.frozen(eq=False)
class FreeSurrogate:
    """Any combination of endpoint, active steps, weights and split (arXiv 2606.11075).

    LeapAlign, Sparse, Bridge, Lagrange, ReFL and DRTune are points of this space.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    paper: ClassVar[str] = "arXiv 2606.11075"
    title: ClassVar[str] = "Free surrogate"
    metrics: ClassVar[Mapping[str, str]] = {**METRICS, **RESIDUALS}
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "`endpoint`: the sample, or the posterior mean at a random late step",
        "active": "`active`: late-biased, supports or evenly spaced",
        "weights": "`weights`: euler, leap, lagrange or hat, times f",
        "coupling": "`coupling` at j, under a `split`",
    }

    endpoint: Literal["sample", "posterior-mean"] = "sample"
    """What the reward sees: the cached sample, or the posterior mean at a drawn late step."""
    stop: float = attrs.field(default=0.4, validator=[above(0), in_range(0, 1)])
    """The posterior mean is that of a step uniform over this last fraction of all steps."""
    active: Active = attrs.field(factory=Active)
    """Table: place, count, late_bias, supports, support_scale."""
    weights: Literal["euler", "leap", "lagrange", "hat"] = "euler"
    """Own step only; up to the next active step; Lagrange polynomials; linear interpolation."""
    rescale: float = attrs.field(default=0.0, validator=in_range(0, 1))
    """How much of the dropped steps' length the active ones make up for."""
    split: Split = "none"
    """One segment, or two that meet at j, and how the pair k < j is drawn."""
    cap: int = attrs.field(default=0, validator=at_least(0))
    """Largest number of steps from j to the image under "dirichlet"; 0 for no limit."""
    tail: float = attrs.field(default=1.0, validator=[above(0), in_range(0, 1)])
    """Only this last fraction of the steps is trained."""
    coupling: float = attrs.field(default=0.1, validator=in_range(0, 1))
    """Fraction of the gradient at x_j that flows on to the first segment, under a split."""
    tau: float | Literal["none"] = "none"
    """Least distance in the sample weights; "none" for no weights."""

    def __attrs_post_init__(self) -> None:
        check_cap(self.split, self.cap)
        if self.endpoint == "posterior-mean" and self.split != "none":
            raise ValueError('endpoint = "posterior-mean" takes split = "none"')
        if self.weights == "lagrange" and self.active.place != "supports":
            raise ValueError('weights = "lagrange" takes active.place = "supports"')
        if isinstance(self.tau, float) and self.tau <= 0:
            raise ValueError(f"tau: expected a number above 0, got {self.tau}")

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """Groups of the chosen segments."""
        axes = Axes(
            endpoint=self.endpoint,
            stop=self.stop,
            place=self.active.place,
            count=self.active.count,
            late_bias=self.active.late_bias,
            active_supports=self.active.supports,
            support_scale=self.active.support_scale,
            weights=self.weights,
            rescale=self.rescale,
            split=self.split,
            cap=self.cap,
            tail=self.tail,
            coupling=self.coupling,
            tau=None if self.tau == "none" else float(self.tau),
        )
        return build(axes, rollout, generator)
