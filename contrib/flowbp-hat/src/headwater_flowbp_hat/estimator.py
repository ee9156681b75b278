"""The estimator `flowbp-hat`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import attrs
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import at_least, in_range
from headwater_flowbp_hat.hats import hat_basis, late_biased, residual, strata


@attrs.frozen(eq=False)
class FlowBPHat:
    """A few active steps that carry all others, by linear interpolation between them.

    FlowBP-Sparse and -Bridge (arXiv 2606.11075) drop the gradient of inactive steps and rescale
    the rest. Here each inactive step's upstream is shared by the active steps around it, so that
    the gradient is that of all steps with Jacobians interpolated in sigma: exact, but for what
    nested gradients are discounted, where the Jacobians are linear in sigma between active steps.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = "arXiv 2606.11075"
    title: ClassVar[str] = "FlowBP with hat functions"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "`k`, one in each part of the trajectory or late-biased",
        "weights": "cell averages of hat functions in sigma",
        "coupling": "`coupling` at the joint",
    }
    metrics: ClassVar[Mapping[str, str]] = {
        "active": "steps evaluated with gradient",
        "first_step": "the first active step, counted from the noise",
        "d_0": "mean absolute difference of the last segment's quadrature and the cached image",
        "d_j": "the same of the first segment, at the joint",
    }

    k: int = attrs.field(default=4, validator=at_least(1))
    """Active steps; no more than the rollout has."""
    place: Literal["strata", "late-biased"] = "strata"
    """One drawn in each of k equal parts of the trajectory, or a late-biased draw from all."""
    late_bias: float = attrs.field(default=0.0, validator=at_least(0))
    """Step i is drawn with probability proportional to (i + 1) to this power."""
    coupling: float = attrs.field(default=0.3, validator=in_range(0, 1))
    """Fraction of the gradient at the joint, the active step j at position k // 2, that flows on
    to the steps before it. 0, or k = 1: one group without a joint."""

    def __attrs_post_init__(self) -> None:
        if self.late_bias and self.place != "late-biased":
            raise ValueError('late_bias is read only with place = "late-biased"')

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """Two groups that meet at the joint, or one. Costs no forward."""
        n = rollout.steps
        if self.k > n:
            raise ValueError(f"flowbp-hat takes k = {self.k} active steps of a rollout of {n}")
        if self.place == "strata":
            active = strata(n, self.k, generator)
        else:
            active = late_biased(n, self.k, self.late_bias, generator)
        if self.coupling == 0 or self.k == 1:
            segments = [(range(n), active)]
        else:
            half = self.k // 2
            j = active[half]
            segments = [(range(j), active[:half]), (range(j, n), active[half:])]
        groups = [
            self._group(rollout, steps, own, joint=position > 0)
            for position, (steps, own) in enumerate(segments)
        ]
        misses = [_miss(rollout, group) for group in groups]
        diagnostics = {"active": float(self.k), "first_step": float(active[0])}
        for name, miss in zip(("d_0", "d_j"), reversed(misses), strict=False):
            diagnostics[name] = float(miss.mean())
        return Surrogate(tuple(groups), rollout.state(n), None, rollout, diagnostics)

    def _group(
        self, rollout: Rollout, steps: Sequence[int], active: Sequence[int], *, joint: bool
    ) -> Group:
        basis = hat_basis(active, steps, [float(s) for s in rollout.sigmas])
        return Group(tuple(steps), tuple(active), basis, self.coupling if joint else 0.0)


def _miss(rollout: Rollout, group: Group) -> Tensor:
    """How far the group's quadrature, with cached velocities, misses its end: (B,)."""
    sizes = [rollout.step_size(i) for i in group.steps]
    masses = (group.basis @ group.basis.new_tensor(sizes)).tolist()
    velocities = [rollout.velocity(a) for a in group.active]
    start, end = rollout.state(group.steps[0]), rollout.state(group.steps[-1] + 1)
    return residual(start, masses, velocities, end)
