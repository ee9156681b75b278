"""FlowBP's three estimators (arXiv 2606.11075). Defaults are the published FLUX.1-dev settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs
from torch import Generator

from headwater import hookimpl
from headwater.types import Rollout, Surrogate
from headwater.validators import above, at_least, in_range
from headwater_flowbp.builders import METRICS, RESIDUALS, Axes, build, check_cap

Sampler = Literal["uniform", "dirichlet", "midpoint", "midpoint-j"]
PAPER = "arXiv 2606.11075"
_COMMON = Axes(
    endpoint="sample",
    stop=0.4,
    place="late-biased",
    count=1,
    late_bias=0.0,
    active_supports=1,
    support_scale=1.0,
    weights="euler",
    rescale=0.0,
    split="none",
    cap=0,
    tail=1.0,
    coupling=0.0,
    tau=None,
)


@attrs.frozen(eq=False)
class Sparse:
    """K late-biased active steps of one Euler reconstruction (FlowBP-Sparse, arXiv 2606.11075).

    The gradient of the other steps is dropped, and made up for by `rescale`.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = PAPER
    title: ClassVar[str] = "FlowBP-Sparse"
    metrics: ClassVar[Mapping[str, str]] = METRICS
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "`k`, late-biased",
        "weights": "its own step, times f",
        "coupling": "0",
    }

    k: int = attrs.field(default=3, validator=at_least(1))
    """Active steps (the paper's K); no more than the rollout has."""
    late_bias: float = attrs.field(default=2.0, validator=at_least(0))
    """Step i is drawn with probability proportional to (i + 1) to this power."""
    rescale: float = attrs.field(default=1.0, validator=in_range(0, 1))
    """How much of the dropped steps' length the active ones make up for."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group of all steps."""
        axes = attrs.evolve(_COMMON, count=self.k, late_bias=self.late_bias, rescale=self.rescale)
        return build(axes, rollout, generator)


@attrs.frozen(eq=False)
class Bridge:
    """Two reconstructions joined at j, with a discounted nested gradient (FlowBP-Bridge).

    K active steps are shared over both halves by length, j is always one of them.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = PAPER
    title: ClassVar[str] = "FlowBP-Bridge"
    metrics: ClassVar[Mapping[str, str]] = METRICS
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "`k` over both halves, late-biased, j always",
        "weights": "its own step, times f",
        "coupling": "`coupling` at j",
    }

    k: int = attrs.field(default=5, validator=at_least(2))
    """Active steps (the paper's K), at least one in each half."""
    late_bias: float = attrs.field(default=2.0, validator=at_least(0))
    """Steps of a half are drawn with probability proportional to their position to this power."""
    rescale: float = attrs.field(default=1.0, validator=in_range(0, 1))
    """How much of the dropped steps' length the active ones make up for."""
    coupling: float = attrs.field(default=0.1, validator=in_range(0, 1))
    """Fraction of the gradient at x_j that flows on to the first half (the paper's alpha)."""
    sampler: Sampler = "uniform"
    """How the pair k < j is drawn, of which j splits the trajectory."""
    cap: int = attrs.field(default=0, validator=at_least(0))
    """Largest number of steps from j to the image under "dirichlet"; 0 for no limit."""
    tail: float = attrs.field(default=1.0, validator=[above(0), in_range(0, 1)])
    """Only this last fraction of the steps is trained."""

    def __attrs_post_init__(self) -> None:
        check_cap(self.sampler, self.cap)

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """Two groups that meet at j."""
        axes = attrs.evolve(
            _COMMON,
            count=self.k,
            late_bias=self.late_bias,
            rescale=self.rescale,
            split=self.sampler,
            cap=self.cap,
            tail=self.tail,
            coupling=self.coupling,
        )
        return build(axes, rollout, generator)


@attrs.frozen(eq=False)
class Lagrange:
    """Two quadrature connectors, k to j and j to the image (FlowBP-Lagrange, arXiv 2606.11075).

    Each leaps by the integral of a Lagrange polynomial through a few cached velocities, of which
    the first ones are evaluated with gradient. Samples that the connectors miss weigh less.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = PAPER
    title: ClassVar[str] = "FlowBP-Lagrange"
    metrics: ClassVar[Mapping[str, str]] = {**METRICS, **RESIDUALS}
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "the first two supports of each leap (`active`)",
        "weights": "cell averages of the Lagrange polynomial, times f",
        "coupling": "`coupling` at j",
    }

    coupling: float = attrs.field(default=0.1, validator=in_range(0, 1))
    """Fraction of the gradient at x_j that flows on to the first leap (the paper's alpha)."""
    tau: float = attrs.field(default=0.2, validator=above(0))
    """Distances below it count as it in the sample weights."""
    rescale: float = attrs.field(default=0.5, validator=in_range(0, 1))
    """How much of the inactive supports' weight the active ones make up for, per leap."""
    order: int = attrs.field(default=3, validator=at_least(1))
    """Supports of a leap, evenly spaced by step (fewer where the leap is shorter)."""
    active: Literal["start", "midpoint", "all"] = "midpoint"
    """Supports with gradient: the first, the first two, or all."""
    weights: Literal["lagrange", "uniform"] = "lagrange"
    """Lagrange quadrature, or equal shares."""
    sampler: Sampler = "dirichlet"
    """How the pair k < j is drawn."""
    cap: int = attrs.field(default=0, validator=at_least(0))
    """Largest number of steps from j to the image under "dirichlet"; 0 for no limit."""
    tail: float = attrs.field(default=1.0, validator=[above(0), in_range(0, 1)])
    """Only this last fraction of the steps is trained."""

    def __attrs_post_init__(self) -> None:
        check_cap(self.sampler, self.cap)

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """Two groups that meet at j."""
        axes = attrs.evolve(
            _COMMON,
            place="supports",
            count=self.order,
            active_supports={"start": 1, "midpoint": 2, "all": self.order}[self.active],
            support_scale=0.25,
            weights=self.weights,
            rescale=self.rescale,
            split=self.sampler,
            cap=self.cap,
            tail=self.tail,
            coupling=self.coupling,
            tau=self.tau,
        )
        return build(axes, rollout, generator)
