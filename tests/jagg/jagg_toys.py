"""Updates by JAGG on toys, and the exact gradient written without groups, bases or engine."""

from __future__ import annotations

from typing import Any

import attrs
import pluggy
import torch
from torch import Tensor, nn
from toy_upstreams import PerStepEnergy

from headwater import hookspecs
from headwater.engine import Engine, run_groups
from headwater.markers import PROJECT, hookimpl
from headwater.randomness import generator_of
from headwater.testing.toy_flow import ToyFlow, make_batch, roll_out
from headwater.types import Batch, Credit, Diagnostics, Prompt, Rollout, Surrogate

UNEVEN = (1.0, 0.97, 0.9, 0.86, 0.71, 0.66, 0.52, 0.5, 0.31, 0.22, 0.13, 0.04, 0.0)
"""Twelve steps, no two alike."""


class LinearFlow:
    """v = x A + t b + c, linear in (x, t), float64. Its latent has 5 numbers."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.network = nn.Module()
        for name, shape in (("A", (5, 5)), ("b", (5,)), ("c", (5,))):
            value = 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
            self.network.register_parameter(name, nn.Parameter(value))

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        n = self.network
        return x @ n.A + sigma.to(x.dtype)[:, None] * n.b + n.c

    def trainable(self) -> dict[str, nn.Parameter]:
        return dict(self.network.named_parameters())


class BentFlow(LinearFlow):
    """v = phi(t) tanh(x A + t b + c), phi a bump in the middle: far from linear in t."""

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        bump = 0.3 + 2 * torch.exp(-((sigma.to(x.dtype) - 0.5) ** 2) / 0.02)
        return bump[:, None] * torch.tanh(super().velocity(x, sigma, conditioning))


def on_a_chord(noise: float = 0.0, seed: int = 4) -> Rollout:
    """Three samples whose states lie on a line in t, but for some noise; twelve uneven steps."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    sigmas = torch.tensor(UNEVEN, dtype=torch.float64)
    t = sigmas.view(-1, 1, 1)
    states = t * ends[0] + (1 - t) * ends[1]
    states = states + noise * torch.randn(states.shape, generator=generator, dtype=torch.float64)
    return Rollout(batch_of(3, 12), states, sigmas)


def batch_of(size: int, steps: int, trained: tuple[int, ...] | None = None) -> Batch:
    return Batch(
        prompts=(Prompt("p"),) * size,
        conditioning=None,
        seeds=tuple(range(size)),
        group_ids=tuple(range(size)),
        height=2,
        width=2,
        steps=steps,
        trained_steps=tuple(range(steps)) if trained is None else trained,
    )


def toy_rollout(
    flow: ToyFlow, steps: int = 9, trained: tuple[int, ...] | None = None, seed: int = 0
) -> Rollout:
    """Three samples of the nonlinear toy: an Euler path, its states shaken off it by noise."""
    batch = attrs.evolve(make_batch(3, steps), seeds=tuple(seed * 100 + i for i in range(3)))
    rollout = roll_out(flow, batch)
    generator = torch.Generator().manual_seed(seed)
    shake = torch.randn(rollout.latents.shape, generator=generator, dtype=torch.float64)
    latents = rollout.latents + 0.1 * shake
    batch = attrs.evolve(batch, trained_steps=tuple(range(steps)) if trained is None else trained)
    with torch.no_grad():
        velocities = torch.stack(
            [
                flow.velocity(latents[i], rollout.sigmas[i].expand(3), batch.conditioning)
                for i in range(steps)
            ]
        )
    return Rollout(batch, latents, rollout.sigmas, velocities)


def at_version(rollout: Rollout, version: int) -> Rollout:
    """The same rollout when that many updates are applied to the weights."""
    return attrs.evolve(rollout, batch=attrs.evolve(rollout.batch, policy_version=version))


def build(estimator: Any, backbone: Any, rollout: Rollout, seed: int = 0) -> Surrogate:
    with torch.no_grad():
        return estimator.build_surrogate(backbone, rollout, generator_of("indices", seed))


def update(
    estimator: Any,
    backbone: Any,
    rollout: Rollout,
    seed: int = 0,
    mode: str = "stream",
    algorithm: Any = None,
) -> tuple[Surrogate, Diagnostics]:
    """One micro-batch through the hooks, as a run composes them."""
    algorithm = PerStepEnergy() if algorithm is None else algorithm
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in (Engine(backbone, mode), algorithm, estimator):
        manager.register(plugin)
    manager.check_pending()
    surrogate = build(estimator, backbone, rollout, seed)
    return surrogate, run_groups(
        manager.hook, backbone, surrogate, "per-step", Credit(), None, mode
    )


def gradient_of(estimator: Any, backbone: Any, rollout: Rollout, **more: Any) -> Tensor:
    """The gradient of one update, in one vector."""
    clear(backbone)
    update(estimator, backbone, rollout, **more)
    return vector(backbone)


def clear(backbone: Any) -> None:
    for parameter in backbone.trainable().values():
        parameter.grad = None


def vector(backbone: Any) -> Tensor:
    every = backbone.trainable().values()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in every])


def step_gradient(
    backbone: Any, rollout: Rollout, step: int, cotangent: Tensor | None = None
) -> Tensor:
    """J_i^T c in one vector; c is the step's own upstream if not given."""
    batch = rollout.batch
    sigma = rollout.sigmas[step].expand(len(batch))
    v = backbone.velocity(rollout.latents[step], sigma, batch.conditioning)
    c = PerStepEnergy().upstream_of(step, v.detach()) if cotangent is None else cotangent
    found = torch.autograd.grad(v, list(backbone.trainable().values()), c, allow_unused=True)
    return torch.cat([g.flatten() for g in found])


def upstream(backbone: Any, rollout: Rollout, step: int) -> Tensor:
    """s_i, (B, *latent)."""
    batch = rollout.batch
    sigma = rollout.sigmas[step].expand(len(batch))
    with torch.no_grad():
        v = backbone.velocity(rollout.latents[step], sigma, batch.conditioning)
    return PerStepEnergy().upstream_of(step, v)


def exact_gradient(backbone: Any, rollout: Rollout, steps: Any = None) -> Tensor:
    """Sum of the steps' own gradients."""
    steps = rollout.batch.trained_steps if steps is None else steps
    return sum(step_gradient(backbone, rollout, i) for i in steps)


def cosine(left: Tensor, right: Tensor) -> float:
    return float(left @ right / (left.norm() * right.norm()))


class Silent:
    """No upstream at all: every sample clipped, or dropped."""

    upstream = "per-step"

    def __init__(self, steps):
        self.steps = steps

    @hookimpl
    def compute_upstream(self, group, velocities):
        one = [
            PerStepEnergy().upstream_of(i, v) for i, v in zip(group.steps, velocities, strict=True)
        ]
        return torch.stack(
            [0 * s if i in self.steps else s for i, s in zip(group.steps, one, strict=True)]
        )
