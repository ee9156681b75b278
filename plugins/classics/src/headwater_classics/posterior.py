"""Estimators that read the reward on a posterior mean: `refl` and `drtune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import attrs
from torch import Generator

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import above, at_least, in_range, one_of
from headwater_classics.steps import draw_tail, spaced, tail_length, unit_rows

Endpoint = Literal["posterior-mean", "sample"]
METRICS = {
    "step": "the drawn step whose posterior mean the reward sees, counted from the noise",
    "active": "steps evaluated with gradient",
}


def one_group(
    rollout: Rollout, endpoint: Endpoint, steps: Sequence[int], active: Sequence[int], stop: int
) -> Surrogate:
    """One group, the reward on the sample or on the posterior mean at `stop`."""
    mean_at = stop if endpoint == "posterior-mean" else None
    group = Group(tuple(steps), tuple(active), unit_rows(steps, active, mean_at))
    image = rollout.state(rollout.steps)
    if mean_at is not None:
        image = rollout.state(stop) - float(rollout.sigmas[stop]) * rollout.velocity(stop)
    diagnostics = {"step": float(stop), "active": float(len(active))}
    return Surrogate((group,), image, None, rollout, diagnostics)


@attrs.frozen(eq=False)
class ReFL:
    """One late step, the reward on its posterior mean (ReFL, arXiv 2304.05977)."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    paper: ClassVar[str] = "arXiv 2304.05977"
    title: ClassVar[str] = "ReFL"
    metrics: ClassVar[Mapping[str, str]] = METRICS
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the posterior mean at a random late step, or the sample",
        "active": "that step",
        "weights": "all steps from it on; its own under the sample",
        "coupling": "0",
    }

    endpoint: Endpoint = attrs.field(
        default="posterior-mean", validator=one_of("posterior-mean", "sample")
    )
    """What the reward sees: the posterior mean at the drawn step, or the cached sample."""
    tail: float = attrs.field(default=0.44, validator=[above(0), in_range(0, 1)])
    """The step is uniform over this last fraction of all steps (11 of 25)."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group from the drawn step to the end."""
        tau = draw_tail(rollout.steps, self.tail, generator)
        return one_group(rollout, self.endpoint, range(tau, rollout.steps), [tau], tau)


@attrs.frozen(eq=False)
class DRTune:
    """A few equally spaced steps, the reward on the posterior mean of a late one.

    DRTune (arXiv 2405.00760): the network's input is cut from the graph, sampling stops early
    at step e. Where e itself is not trained, nothing flows through its velocity.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    paper: ClassVar[str] = "arXiv 2405.00760"
    title: ClassVar[str] = "DRTune"
    metrics: ClassVar[Mapping[str, str]] = METRICS
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the posterior mean at a random late step e, or the sample",
        "active": "`k` equally spaced ones up to e",
        "weights": "its own step; all steps from e on for e",
        "coupling": "0",
    }

    endpoint: Endpoint = attrs.field(
        default="posterior-mean", validator=one_of("posterior-mean", "sample")
    )
    """What the reward sees: the posterior mean at the early stop, or the cached sample."""
    k: int = attrs.field(default=3, validator=at_least(1))
    """Trained steps, equally spaced up to the early stop; no more than the earliest one leaves."""
    stop: float = attrs.field(default=0.4, validator=[above(0), in_range(0, 1)])
    """The early stop is uniform over this last fraction of all steps."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group of all steps."""
        n = rollout.steps
        least = n - tail_length(n, self.stop) + 1
        if self.k > least:
            raise ValueError(
                f"drtune trains k = {self.k} steps, the earliest stop of a rollout of {n} steps "
                f"leaves {least}"
            )
        e = draw_tail(n, self.stop, generator)
        return one_group(rollout, self.endpoint, range(n), spaced(e, self.k, generator), e)
