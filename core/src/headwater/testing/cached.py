"""A cached rollout of arbitrary numbers: builders of groups ask for nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from headwater.types import Batch, Prompt, Rollout, Surrogate


def shifted(steps: int, shift: float = 3.0) -> torch.Tensor:
    """The usual uneven grid, 1 to 0."""
    s = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return (shift * s / (1 + (shift - 1) * s)).float()


def cached_rollout(
    steps: int, size: int = 2, seed: int = 0, trained: Sequence[int] = ()
) -> Rollout:
    """N steps of B samples of shape (3, 2), float64, Euler-consistent."""
    generator = torch.Generator().manual_seed(seed)
    sigmas = shifted(steps)
    x = torch.randn(size, 3, 2, generator=generator, dtype=torch.float64)
    states, velocities = [x], []
    for i in range(steps):
        v = torch.randn(size, 3, 2, generator=generator, dtype=torch.float64)
        x = x - (float(sigmas[i]) - float(sigmas[i + 1])) * v
        states.append(x)
        velocities.append(v)
    batch = Batch(
        prompts=(Prompt("p"),) * size,
        conditioning=None,
        seeds=tuple(range(size)),
        group_ids=tuple(range(size)),
        height=4,
        width=4,
        steps=steps,
        trained_steps=tuple(trained),
    )
    return Rollout(batch, torch.stack(states), sigmas, torch.stack(velocities))


def build(estimator: Any, rollout: Rollout, seed: int = 0, backbone: Any = None) -> Surrogate:
    """Call `build_surrogate` by name, as the hook does."""
    generator = torch.Generator().manual_seed(seed)
    given = {"rollout": rollout, "generator": generator, "backbone": backbone}
    function = type(estimator).build_surrogate
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    made: Surrogate = estimator.build_surrogate(**{name: given[name] for name in names})
    return made


def same_groups(left: Surrogate, right: Surrogate) -> None:
    """Two surrogates are the same program, bit for bit where they can be."""
    assert [g.steps for g in left.groups] == [g.steps for g in right.groups]
    assert [g.active for g in left.groups] == [g.active for g in right.groups]
    assert [g.coupling for g in left.groups] == [g.coupling for g in right.groups]
    for one, other in zip(left.groups, right.groups, strict=True):
        torch.testing.assert_close(one.basis, other.basis, rtol=1e-14, atol=0)
    torch.testing.assert_close(left.endpoint, right.endpoint, rtol=1e-14, atol=0)
    assert left.endpoint is not None and right.endpoint is not None
    weights = [
        torch.ones(len(left.endpoint), dtype=torch.float64)
        if s.sample_weights is None
        else s.sample_weights
        for s in (left, right)
    ]
    torch.testing.assert_close(*weights, rtol=1e-14, atol=0)


def with_size(rollout: Rollout, size: int) -> Rollout:
    """The first samples of a rollout."""
    return attrs.evolve(
        rollout,
        batch=rollout.batch.index(range(size)),
        latents=rollout.latents[:, :size],
        velocities=None if rollout.velocities is None else rollout.velocities[:, :size],
    )
