"""Estimators that read the reward on a posterior mean: `refl` and `drtune`.

The posterior mean at step e is x_e - sigma_e v_e. Since sigma_e is the sum of the step sizes
from e on, ones in the basis row of e carry exactly its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import attrs
import torch
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import above, at_least, in_range

Endpoint = Literal["posterior-mean", "sample"]


def draw_tail(steps: int, fraction: float, generator: Generator) -> int:
    """A step uniform over the last round(fraction * steps), at least one."""
    count = max(1, round(fraction * steps))
    return steps - count + int(torch.randint(count, (), generator=generator))


def posterior_mean(rollout: Rollout, step: int) -> Tensor:
    """x - sigma v of a step, from the cache: (B, *latent)."""
    return rollout.state(step) - float(rollout.sigmas[step]) * rollout.velocity(step)


def posterior_group(steps: Sequence[int], active: Sequence[int], mean_at: int | None) -> Group:
    """Unit rows for the active steps; the row of `mean_at` has ones from there on."""
    basis = torch.zeros(len(active), len(steps), dtype=torch.float64)
    for row, a in enumerate(active):
        column = list(steps).index(a)
        if a == mean_at:
            basis[row, column:] = 1
        else:
            basis[row, column] = 1
    return Group(tuple(steps), tuple(active), basis)


@attrs.frozen(eq=False)
class ReFL:
    """One late step, the reward on its posterior mean (ReFL, arXiv 2304.05977)."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    paper: ClassVar[str] = "arXiv 2304.05977"

    endpoint: Endpoint = "posterior-mean"
    """What the reward sees: the posterior mean at the drawn step, or the cached sample."""
    tail: float = attrs.field(default=0.44, validator=in_range(0, 1))
    """The step is uniform over this last fraction of all steps (11 of 25)."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group from the drawn step to the end."""
        n = rollout.steps
        tau = draw_tail(n, self.tail, generator)
        if self.endpoint == "sample":
            group, endpoint = posterior_group(range(tau, n), [tau], None), rollout.state(n)
        else:
            group = posterior_group(range(tau, n), [tau], tau)
            endpoint = posterior_mean(rollout, tau)
        return Surrogate((group,), endpoint, None, rollout, {"step": float(tau)})


@attrs.frozen(eq=False)
class DRTune:
    """A few equally spaced steps, the reward on the posterior mean of a late one.

    DRTune (arXiv 2405.00760): the network's input is cut from the graph, sampling stops early
    at step e. Where e itself is not trained, nothing flows through its velocity.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    paper: ClassVar[str] = "arXiv 2405.00760"

    endpoint: Endpoint = "posterior-mean"
    """What the reward sees: the posterior mean at the early stop, or the cached sample."""
    k: int = attrs.field(default=3, validator=at_least(1))
    """Trained steps, equally spaced up to the early stop (fewer where it comes sooner)."""
    stop: float = attrs.field(default=0.4, validator=[above(0), in_range(0, 1)])
    """The early stop is uniform over this last fraction of all steps."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group of all steps."""
        n = rollout.steps
        e = draw_tail(n, self.stop, generator)
        active = spaced(e, self.k, generator)
        if self.endpoint == "sample":
            group, endpoint = posterior_group(range(n), active, None), rollout.state(n)
        else:
            group, endpoint = posterior_group(range(n), active, e), posterior_mean(rollout, e)
        diagnostics = {"step": float(e), "active": float(len(active))}
        return Surrogate((group,), endpoint, None, rollout, diagnostics)


def spaced(last: int, k: int, generator: Generator) -> list[int]:
    """`k` steps of 0 .. last with stride (last + 1) // k, the first uniform over what is left."""
    k = min(k, last + 1)
    stride = (last + 1) // k
    left = last + 1 - (k - 1) * stride
    first = int(torch.randint(left, (), generator=generator))
    return [first + i * stride for i in range(k)]
