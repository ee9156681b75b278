"""The estimator `flowbp-chain`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar, Literal

import attrs
from torch import Generator

from headwater import hookimpl
from headwater.types import Rollout, Surrogate
from headwater.validators import at_least, in_range
from headwater_flowbp_chain.leaps import chained, draw, edges, miss


@attrs.frozen(eq=False)
class FlowBPChain:
    """The whole trajectory as K leaps, each taken by the velocity of one random step of it.

    The steps of LeapAlign (arXiv 2604.15311) and FlowBP (arXiv 2606.11075) lie anywhere and one
    joint carries nested gradient. Here every leap does. A leap's step is drawn with probability
    proportional to its size, so that the mean over draws is the gradient with every step in it:
    nested gradient passes from leap to leap with `coupling`, and not within one. So with coupling 0
    it is unbiased for the gradient of all steps without nested ones, and with coupling 1 and as
    many leaps as steps it is full backpropagation.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = "arXiv 2606.11075"
    title: ClassVar[str] = "FlowBP with a chain of random leaps"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "one step of each of `k` equal leaps, with probability proportional to its size",
        "weights": "its leap's whole length",
        "coupling": "`coupling` between all leaps",
    }
    metrics: ClassVar[Mapping[str, str]] = {
        "active": "steps evaluated with gradient",
        "first_step": "the first active step, counted from the noise",
        "d_0": "mean absolute difference of the leaps by cached velocities and the cached image",
    }

    k: int = attrs.field(default=4, validator=at_least(1))
    """Leaps; no more than the rollout has steps."""
    coupling: float = attrs.field(default=1.0, validator=in_range(0, 1))
    """Fraction of the gradient at a leap's input that flows on to the leaps before it."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group a leap. Costs no forward."""
        n = rollout.steps
        if self.k > n:
            raise ValueError(f"flowbp-chain takes k = {self.k} leaps of a rollout of {n} steps")
        sigmas = [float(s) for s in rollout.sigmas]
        bounds = edges(n, self.k)
        active = draw(sigmas, bounds, generator)
        lengths = [sigmas[first] - sigmas[end] for first, end in pairwise(bounds)]
        velocities = [rollout.velocity(a) for a in active]
        missed = miss(rollout.state(0), lengths, velocities, rollout.state(n))
        return Surrogate(
            groups=tuple(chained(sigmas, bounds, active, self.coupling)),
            endpoint=rollout.state(n),
            sample_weights=None,
            rollout=rollout,
            diagnostics={
                "active": float(self.k),
                "first_step": float(active[0]),
                "d_0": float(missed.mean()),
            },
        )
