"""Small whole algorithms and estimators; see `headwater.testing.plugins`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import attrs
import torch
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.engine import endpoint_gradient, euler_upstream
from headwater.types import Credit, Group, Rollout, Scores, Surrogate


@attrs.frozen(eq=False)
class ToyDirect:
    """Minus the weighted rewards."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    needs_stochastic_steps: ClassVar[bool] = False

    @hookimpl
    def compute_upstream(self, group: Group, rollout: Rollout, carried: Tensor) -> Tensor:
        """(S, B, *latent)"""
        return euler_upstream(group, rollout, carried)

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """None."""
        return ()

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """None."""
        return ()

    def credit(self, scores: Scores, surrogate: Surrogate) -> Credit:
        """The gradient at the endpoint."""
        return endpoint_gradient(-scores.total(), surrogate, scores.count)


@attrs.frozen(eq=False)
class ToyPolicy:
    """REINFORCE with the mean of each prompt's samples as its baseline."""

    upstream: ClassVar[Literal["per-step"]] = "per-step"
    needs_stochastic_steps: ClassVar[bool] = True

    @hookimpl
    def compute_upstream(
        self, group: Group, rollout: Rollout, credit: Credit, velocities: Tensor
    ) -> Tensor:
        """-A / n times d log_prob / d v, (S, B, *latent)."""
        assert credit.advantages is not None
        out = []
        for i, v in zip(group.steps, velocities, strict=True):
            x, sigmas = rollout.state(i), rollout.sigmas
            transition = rollout.dynamics.transition(x, v, i, sigmas)
            gradient = rollout.dynamics.log_prob_grad(
                rollout.state(i + 1), transition, x, v, i, sigmas
            )
            weight = credit.advantages if credit.kept is None else credit.advantages * credit.kept
            weight = weight.to(gradient).view(-1, *[1] * (gradient.dim() - 1))
            out.append(-weight * gradient / credit.count)
        return torch.stack(out)

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """All but the last."""
        return tuple(range(N - 1))

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """All but the last."""
        return tuple(range(N - 1))

    def credit(self, scores: Scores, groups: Sequence[int]) -> Credit:
        """Rewards less their group's mean."""
        total = scores.total()
        same = torch.tensor([[a == b for b in groups] for a in groups]).to(total)
        baseline = (same @ total) / same.sum(dim=1)
        kept = torch.ones(len(total), dtype=torch.bool)
        return Credit(advantages=total - baseline, kept=kept, count=scores.count)


def _alone(rollout: Rollout, steps: Sequence[int], coupling: float) -> Surrogate:
    groups = tuple(Group((i,), (i,), torch.ones(1, 1), coupling) for i in steps)
    return Surrogate(groups, rollout.state(rollout.steps), None, rollout)


@attrs.frozen(eq=False)
class LastStep:
    """DRaFT-1."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """One group."""
        return _alone(rollout, [rollout.steps - 1], 0.0)


@attrs.frozen(eq=False)
class EveryStep:
    """Full backpropagation."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    exact: ClassVar[bool] = True

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """N groups."""
        return _alone(rollout, range(rollout.steps), 1.0)


@attrs.frozen(eq=False)
class NoisyStep:
    """One step drawn from the generator."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group."""
        i = int(torch.randint(rollout.steps, (), generator=generator))
        return _alone(rollout, [i], 0.0)


@attrs.frozen(eq=False)
class EachStep:
    """Every trained step carries its own upstream."""

    upstream: ClassVar[Literal["per-step"]] = "per-step"
    endpoint: ClassVar[str] = "none"
    exact: ClassVar[bool] = True

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """One group a trained step."""
        found = _alone(rollout, rollout.batch.trained_steps, 0.0)
        return attrs.evolve(found, endpoint=None)
