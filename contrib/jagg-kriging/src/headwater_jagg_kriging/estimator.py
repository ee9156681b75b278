"""The estimator `jagg-kriging`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import above, at_least, from_below, in_range
from headwater_jagg_kriging.placement import placed

if TYPE_CHECKING:
    from headwater.protocols import Dynamics


@attrs.frozen(eq=False)
class JaggKriging:
    """JAGG (arXiv 2607.17572) whose nodes follow from the schedule, group by group.

    The paper evaluates the first and the last step of a group. Here the steps evaluated are those
    that let the gradient of all be predicted best, if Jacobians differ the more the farther their
    states lie apart; the noise of the dynamics says how far. Same cost, nothing measured. Needs a
    per-step upstream. Exact where JAGG is, between its nodes: beyond them the nearest node's
    Jacobian is taken, which noise makes a better guess than a line through two.
    """

    upstream: ClassVar[Literal["per-step"]] = "per-step"
    endpoint: ClassVar[str] = "none"
    paper: ClassVar[str] = "arXiv 2607.17572"
    title: ClassVar[str] = "JAGG with nodes placed by kriging"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "none: an upstream per step",
        "active": "`nodes` of every `window` steps, where the expected error is least",
        "weights": "linear in sigma between nodes and the nearest beyond, or kriging (`basis`)",
        "coupling": "0",
    }
    metrics: ClassVar[Mapping[str, str]] = {
        "routed_groups": "groups that nodes carry",
        "recomputed": 'share of samples whose velocities were not cached (`middle = "cached"`)',
    }

    window: int = attrs.field(default=4, validator=at_least(1))
    """W, steps of a group. Trained steps are cut from the noisy end; the last may be shorter."""
    nodes: int = attrs.field(default=2, validator=at_least(1))
    """Steps of a group that are evaluated with gradient."""
    routed: float = attrs.field(default=1.0, validator=in_range(0, 1))
    """Fraction of the groups, from the noisy end, that nodes carry; the others are exact."""
    basis: Literal["linear", "kriging"] = "linear"
    """Between nodes linear in sigma and the nearest node's beyond, or the weights of least
    expected error."""
    power: float = attrs.field(default=0.75, validator=[above(0), from_below(0, 1)])
    """H: the expected squared difference of two Jacobians grows with that power of the expected
    squared distance of their states. Small: a step says little of its neighbours."""
    middle: Literal["recompute", "cached"] = "recompute"
    """Velocities that the upstream is formed from. "cached": the rollout's, while the weights are
    those that made it; afterwards they are recomputed, and `recomputed` is 1."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """Groups of the trained steps: routed ones by their nodes, the others step by step.

        Costs no forward. A rollout that does not hold its dynamics, as that of a plan, counts as
        one without noise. ValueError where its dynamics has none.
        """
        steps = sorted(rollout.batch.trained_steps)
        cuts = [tuple(steps[i : i + self.window]) for i in range(0, len(steps), self.window)]
        routed = math.floor(self.routed * len(cuts) + 0.5)
        stds, weights = schedule_of(rollout)
        sigmas = tuple(float(s) for s in rollout.sigmas)
        groups: list[Group] = []
        for own in cuts[:routed]:
            nodes, basis = placed(sigmas, stds, weights, own, self.nodes, self.power, self.basis)
            groups.append(Group(own, tuple(own[k] for k in nodes), basis))
        one = torch.ones(1, 1, dtype=torch.float64)
        groups += [Group((i,), (i,), one) for own in cuts[routed:] for i in own]
        cached = self.middle == "cached" and rollout.current and rollout.velocities is not None
        diagnostics = {"routed_groups": float(routed)}
        if self.middle == "cached":
            diagnostics["recomputed"] = float(not cached)
        return Surrogate(
            groups=tuple(groups),
            endpoint=None,
            sample_weights=None,
            rollout=rollout,
            diagnostics=diagnostics,
            cached_velocities=cached,
        )


def schedule_of(rollout: Rollout) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Standard deviation of every step, and the weight of its upstream; (N,) each.

    A stochastic step's upstream is the gradient of its log-density at what was drawn: the weight is
    its square one standard deviation from the mean. Steps that are not stochastic have neither.
    Without dynamics no step has noise, and the trained ones weigh alike.
    """
    dynamics: Dynamics | None = rollout.dynamics
    if dynamics is None:
        trained = rollout.batch.trained_steps
        return (0.0,) * rollout.steps, tuple(float(i in trained) for i in range(rollout.steps))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    stds, weights = [0.0] * rollout.steps, [0.0] * rollout.steps
    for i in rollout.batch.stochastic_steps:
        made: Any = dynamics.transition(zero, zero, i, rollout.sigmas)
        if made.std > 0:
            at = made.mean + made.std
            slope = dynamics.log_prob_grad(at, made, zero, zero, i, rollout.sigmas)
            stds[i], weights[i] = float(made.std), float(slope.square().mean())
    if not any(weights):
        raise ValueError("jagg-kriging needs noise, and the rollout has no stochastic step")
    return tuple(stds), tuple(weights)
