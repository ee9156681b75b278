"""Scores and rollouts on which an algorithm is tried."""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater.composition import new_manager
from headwater.randomness import generator_of
from headwater.rollout import RolloutLoop
from headwater.testing.gradients import DYNAMICS, rows
from headwater.testing.toys import LinearFlow, batch_of
from headwater.types import Credit, Group, Rollout, Scores, Surrogate


@attrs.frozen(eq=False)
class Case:
    """Six samples of two prompts, rolled out with the noisy steps an algorithm asks for."""

    rollout: Rollout
    chosen: tuple[int, ...]
    """Its trained steps; all of them for an endpoint upstream."""
    count: int = 12
    leaves: list[tuple[Scores, Tensor]] = attrs.field(factory=list)
    """Scores, and the latents they are a function of."""

    @classmethod
    def of(cls, plugin: Any, steps: int) -> Case:
        """Roll out on a linear flow in float64."""
        flow = LinearFlow()
        noisy = tuple(plugin.stochastic_steps(0, steps))
        trained = tuple(sorted(plugin.trained_steps(0, steps, generator_of("case"))))
        batch = attrs.evolve(
            batch_of(6, steps),
            group_ids=(4, 4, 4, 9, 9, 9),
            stochastic_steps=noisy,
            trained_steps=trained,
        )
        made: Rollout = RolloutLoop().sample_rollout(flow, DYNAMICS, batch)  # type: ignore[arg-type]
        references = {i: 0.9 * made.velocity(i) for i in trained}
        rollout = attrs.evolve(made, dynamics=DYNAMICS, references=references)
        possible = tuple(i for i in trained if DYNAMICS.transition(*_start(rollout, i)).std > 0)
        return cls(rollout, possible or tuple(range(steps)))

    def permuted(self, order: list[int]) -> Case:
        """The same samples in another order."""
        rollout = rows(self.rollout, order)
        references = {i: v[order] for i, v in self.rollout.references.items()}
        return attrs.evolve(self, rollout=attrs.evolve(rollout, references=references))

    @property
    def size(self) -> int:
        """B."""
        return len(self.rollout.batch)

    @property
    def groups(self) -> tuple[int, ...]:
        """(B,) group ids."""
        return self.rollout.batch.group_ids

    @property
    def latent(self) -> tuple[int, ...]:
        """Shape of one latent."""
        return tuple(self.rollout.latents.shape[2:])

    @property
    def endpoint(self) -> Tensor:
        """The samples, (B, *latent)."""
        return self.rollout.state(self.rollout.steps)

    def scores(
        self, at: Tensor | None = None, *, dtype: torch.dtype = torch.float64, count: int = 0
    ) -> Scores:
        """Two smooth rewards of the samples, or of `at`, with history, all below their margins."""
        x = (self.endpoint if at is None else at).detach().to(dtype).requires_grad_()
        flat = x.flatten(1)
        numbers = torch.arange(flat.shape[1], dtype=dtype)
        values = {
            "one": (flat * numbers.cos()).sum(1).tanh(),
            "two": 0.5 * (flat * numbers.sin()).sum(1).sin(),
        }
        scores = Scores(
            values=values,
            weights={"one": 1.0, "two": 0.7},
            margins={"one": 1.5, "two": 1.5},
            count=count or self.count,
        )
        self.leaves.append((scores, x))
        return scores

    def flat_scores(self) -> Scores:
        """Scores that are the same within each prompt."""
        ids = torch.tensor(self.groups, dtype=torch.float64)
        every: dict[str, Any] = {"weights": {"one": 1.0}, "margins": {"one": 1.5}}
        return Scores(values={"one": ids / 10 + 0.1}, count=self.count, **every)

    def credit(
        self,
        plugin: Any,
        scores: Scores,
        *,
        weights: Tensor | None = None,
    ) -> Credit:
        """What the algorithm makes of scores."""
        if plugin.upstream == "per-step":
            plain = {key: value.detach() for key, value in scores.values.items()}
            found: Credit = plugin.credit(attrs.evolve(scores, values=plain), list(self.groups))
            return found
        leaf = next(x for known, x in self.leaves if known is scores)
        surrogate = Surrogate((), leaf, weights, self.rollout)
        made: Credit = plugin.credit(scores, surrogate)
        return made

    def upstream(self, plugin: Any, credit: Credit, steps: tuple[int, ...] | None = None) -> Tensor:
        """`compute_upstream` of a group of steps, called as a run does, without autograd."""
        chosen = self.chosen if steps is None else steps
        basis = torch.ones(1, len(chosen), dtype=torch.float64)
        group = Group(chosen, chosen[:1], basis)
        manager = new_manager()
        manager.register(plugin)
        per_step = plugin.upstream == "per-step"
        velocities = torch.stack([self.rollout.velocity(i) for i in chosen]) if per_step else None
        carried = None if per_step else credit.endpoint_gradient
        with torch.no_grad():
            found: Tensor = manager.hook.compute_upstream(
                group=group,
                rollout=self.rollout,
                credit=credit,
                velocities=velocities,
                carried=carried,
            )
        return found

    def log_prob_grad(self, step: int) -> Tensor:
        """d log_prob / d v of the drawn state, (B, *latent)."""
        x, v, i, sigmas = _start(self.rollout, step)
        transition = DYNAMICS.transition(x, v, i, sigmas)
        after = self.rollout.state(step + 1)
        return DYNAMICS.log_prob_grad(after, transition, x, v, i, sigmas)

    def near(self, one: Tensor, other: Tensor) -> bool:
        """Equal to 1e-10 of the larger."""
        size = max(float(one.abs().max()), float(other.abs().max()), math.ulp(0.0))
        return one.shape == other.shape and float((one - other).abs().max()) <= 1e-10 * size


def _start(rollout: Rollout, i: int) -> tuple[Tensor, Tensor, int, Tensor]:
    return rollout.state(i), rollout.velocity(i), i, rollout.sigmas
