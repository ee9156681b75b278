"""One surrogate gradient with real hooks, on a flow of the kit and without a run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.composition import new_manager, register_core
from headwater.engine import Engine, Mode, endpoint_gradient, euler_upstream, run_groups
from headwater.randomness import generator_of
from headwater.rollout import RolloutLoop
from headwater.testing.plugins import ToyNoise
from headwater.testing.toys import batch_of
from headwater.types import Batch, Credit, Diagnostics, Group, Rollout, Surrogate

DYNAMICS = ToyNoise()


@attrs.frozen(eq=False)
class PullToTarget:
    """Endpoint objective: l_b = |x_b|^2 / 2 - <t_b, x_b>, so that dl/dx = x - t."""

    upstream: Literal["endpoint"] = "endpoint"

    @hookimpl
    def compute_upstream(self, group: Group, rollout: Rollout, carried: Tensor) -> Tensor:
        """(S, B, *latent)"""
        return euler_upstream(group, rollout, carried)

    @staticmethod
    def target(batch: Batch, like: Tensor) -> Tensor:
        """(B, *latent), each sample's own, by its seed alone."""
        numbers = torch.arange(like[0].numel(), dtype=like.dtype).view(like.shape[1:])
        return torch.stack([(numbers + seed).cos() for seed in batch.seeds])

    def losses(self, x: Tensor, batch: Batch) -> Tensor:
        """(B,)"""
        target = self.target(batch, x)
        return (x.square() / 2 - target * x).flatten(1).sum(dim=1)

    def gradient(self, x: Tensor, batch: Batch, count: int) -> Tensor:
        """The closed form of d (sum of losses / count) / dx."""
        return (x - self.target(batch, x)) / count


@attrs.frozen(eq=False)
class StepEnergy:
    """Per-step objective sum_i (1 + i) a_b (v^2 / 2 + cos v) / n, a_b by the sample's seed."""

    upstream: Literal["per-step"] = "per-step"

    @hookimpl
    def compute_upstream(
        self, group: Group, rollout: Rollout, credit: Credit, velocities: Tensor
    ) -> Tensor:
        """(S, B, *latent)"""
        pairs = zip(group.steps, velocities, strict=True)
        return torch.stack([self.of(i, v, rollout.batch, credit.count) for i, v in pairs])

    @staticmethod
    def of(step: int, v: Tensor, batch: Batch, count: int) -> Tensor:
        """The closed form of its gradient in v."""
        sizes = torch.tensor([1 + seed % 5 / 4 for seed in batch.seeds], dtype=v.dtype)
        weight = sizes.view(-1, *[1] * (v.dim() - 1)) * (1 + step) / count
        return weight * (v - v.sin())


def rollout_of(
    flow: Any, size: int, steps: int, upstream: str, *, store: str = "float32"
) -> Rollout:
    """A cached rollout: Euler for an endpoint upstream; noisy and trained steps for a per-step one.

    All steps but the last are noisy and trained.
    """
    chosen = tuple(range(max(1, steps - 1))) if upstream == "per-step" else ()
    batch = attrs.evolve(
        batch_of(size, steps), stochastic_steps=chosen, trained_steps=chosen, store=store
    )
    made: Rollout = RolloutLoop().sample_rollout(flow, DYNAMICS, batch)
    return attrs.evolve(made, dynamics=DYNAMICS)


def rows(rollout: Rollout, chosen: Sequence[int]) -> Rollout:
    """Some samples of a rollout."""
    index = list(chosen)
    v, p = rollout.velocities, rollout.log_probs
    return attrs.evolve(
        rollout,
        batch=rollout.batch.index(index),
        latents=rollout.latents[:, index],
        velocities=None if v is None else v[:, index],
        log_probs=None if p is None else p[:, index],
    )


@attrs.frozen(eq=False)
class Found:
    """What one micro-batch gave."""

    surrogate: Surrogate
    diagnostics: Diagnostics
    gradient: Mapping[str, Tensor]
    """By weight name, float64."""
    built: int
    """Samples whose velocity `build_surrogate` asked for."""
    evaluated: int
    """The same of the engine and of the estimator's other hooks."""

    @property
    def vector(self) -> Tensor:
        """The gradient in one vector."""
        return torch.cat([g.flatten() for g in self.gradient.values()])


def hooks(plugin: Any, flow: Any, objective: Any, mode: Mode = "stream") -> Any:
    """The hooks of an estimator and an objective, core's own where they bring none."""
    manager = new_manager()
    for part in (plugin, objective):
        manager.register(part)
    register_core(manager, Engine(flow, mode))
    manager.check_pending()
    return manager.hook


def objective_of(plugin: Any) -> Any:
    """The objective that gives the upstream an estimator declares."""
    return PullToTarget() if plugin.upstream == "endpoint" else StepEnergy()


@torch.no_grad()
def build(plugin: Any, flow: Any, rollout: Rollout, seed: int | Generator = 0) -> Surrogate:
    """Call `build_surrogate` as a run does."""
    generator = generator_of("contract", seed) if isinstance(seed, int) else seed
    hook = hooks(plugin, flow, objective_of(plugin))
    made: Surrogate = hook.build_surrogate(backbone=flow, rollout=rollout, generator=generator)
    return made


def gradient(
    plugin: Any, flow: Any, rollout: Rollout, count: int, seed: int = 0, mode: Mode = "stream"
) -> Found:
    """Build a surrogate and send it backward; count is n of the loss, before any repeats."""
    objective = objective_of(plugin)
    hook = hooks(plugin, flow, objective, mode)
    flow.evaluated = 0
    with torch.no_grad():
        surrogate = hook.build_surrogate(
            backbone=flow, rollout=rollout, generator=generator_of("contract", seed)
        )
    built, flow.evaluated = flow.evaluated, 0
    for parameter in flow.trainable().values():
        parameter.grad = torch.zeros_like(parameter)
    credit = Credit(count=count)
    if plugin.upstream == "endpoint":
        end = surrogate.endpoint.detach().requires_grad_()
        surrogate = attrs.evolve(surrogate, endpoint=end)
        batch = surrogate.rollout.batch
        repeats = len(batch) // len(rollout.batch)
        credit = endpoint_gradient(objective.losses(end, batch), surrogate, count * repeats)
    diagnostics = run_groups(
        hook, flow, surrogate, plugin.upstream, credit, credit.endpoint_gradient, mode
    )
    grads = {name: p.grad.double().clone() for name, p in flow.trainable().items()}
    return Found(surrogate, diagnostics, grads, built, flow.evaluated)


def closed_form(flow: Any, rollout: Rollout, plugin: Any, count: int) -> dict[str, Tensor]:
    """The exact gradient of an objective on a `LinearFlow`, without autograd."""
    objective = objective_of(plugin)
    batch = rollout.batch
    if plugin.upstream == "endpoint":
        g = objective.gradient(rollout.state(rollout.steps), batch, count)
        return dict(flow.weight_gradient(rollout, flow.upstream(rollout, g)))
    s = [
        objective.of(i, rollout.velocity(i), batch, count) * (i in batch.trained_steps)
        for i in range(rollout.steps)
    ]
    return dict(flow.weight_gradient(rollout, torch.stack(s)))


def by_autograd(flow: Any, rollout: Rollout, plugin: Any, count: int) -> Tensor:
    """The exact gradient on any flow, in one vector: autograd through one graph of all steps."""
    objective, batch = objective_of(plugin), rollout.batch
    weights = list(flow.trainable().values())
    x = rollout.state(0)
    total = x.new_zeros(())
    for i in range(rollout.steps):
        start = x if plugin.upstream == "endpoint" else rollout.state(i)
        v = flow.velocity(start, rollout.sigmas[i].expand(len(batch)), batch.conditioning)
        x = start - rollout.step_size(i) * v
        if plugin.upstream == "per-step" and i in batch.trained_steps:
            total = total + (objective.of(i, v.detach(), batch, count) * v).sum()
    if plugin.upstream == "endpoint":
        total = objective.losses(x, batch).sum() / count
    grads = torch.autograd.grad(total, weights)
    return torch.cat([g.flatten() for g in grads])


def distance(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    size = float(expected.norm())
    return float((found - expected).norm()) / size if size > 0 else float(found.norm())
