"""Activations of a run's stages, counted by running them on the meta device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater.composition import Run, new_manager
from headwater.counting import CountedBackbone
from headwater.engine import Engine, Mode, run_groups
from headwater.live_bytes import peak_bytes
from headwater.markers import hookimpl
from headwater.types import Batch, Credit, Group, Rollout, Surrogate


@torch.no_grad()
def sampling(backbone: Any, rollout: Rollout) -> int:
    x = rollout.state(0)
    sigma = torch.empty(len(x), device="meta")
    return peak_bytes(lambda: backbone.velocity(x, sigma, rollout.batch.conditioning))[1]


def decoding(backbone: Any, rollout: Rollout, rewards: Mapping[str, Any], *, graph: bool) -> int:
    """Decode and score; with the gradient to the endpoint where there is one."""
    endpoint = rollout.state(rollout.steps).detach().clone().requires_grad_(graph)

    def work() -> None:
        with torch.set_grad_enabled(graph):
            images = backbone.decode(endpoint)
            scores = [_score(reward, images, rollout.batch) for reward in rewards.values()]
            if graph:
                total = torch.stack(scores).sum() if scores else images.sum()
                torch.autograd.grad(total, endpoint)

    return peak_bytes(work)[1]


def _score(plugin: Any, images: Tensor, batch: Batch) -> Tensor:
    """Call one reward by its own hook, which may take fewer arguments."""
    manager = new_manager()
    manager.register(plugin)
    (scores,) = manager.hook.score(images=images, batch=batch)
    return scores


@attrs.frozen(eq=False)
class _Upstream:
    """Stands for the algorithm: an upstream of the right shape."""

    @hookimpl
    def compute_upstream(self, group: Group, rollout: Rollout) -> Tensor:
        """(S, B, *latent)"""
        return torch.empty(len(group.steps), *rollout.state(0).shape, device="meta")


def engine(
    backbone: Any,
    run: Run,
    rollout: Rollout,
    surrogates: Sequence[Surrogate],
    modes: Sequence[Mode],
) -> dict[Mode, int]:
    """Peak of the engine over the kinds of groups that are planned, by mode."""
    upstream = run.algorithm.plugin.upstream
    counted = CountedBackbone(backbone, run.file.rollout.guidance)
    carried = None if upstream == "per-step" else torch.empty_like(rollout.state(0))
    for parameter in backbone.trainable().values():
        parameter.grad = torch.empty_like(parameter)
    peaks = dict.fromkeys(modes, 0)
    for mode in modes:
        manager = new_manager()
        manager.register(Engine(counted, mode))
        manager.register(_Upstream())
        for group, planned in _largest(surrogates):
            fresh = upstream == "per-step" and not planned.cached_velocities
            alone = mode == "stream" and not fresh
            part = _first(group) if alone else group
            one = attrs.evolve(planned, groups=(part,), rollout=rollout, endpoint=None)
            work = partial(
                run_groups, manager.hook, counted, one, upstream, Credit(), carried, mode
            )
            peaks[mode] = max(peaks[mode], peak_bytes(work)[1])
    return peaks


def _first(group: Group) -> Group:
    """Of evaluations that are freed one by one, the one that may need its input's gradient."""
    return attrs.evolve(group, active=group.active[:1], basis=group.basis[:1])


def kinds_of(surrogate: Surrogate) -> frozenset[tuple[int, ...]]:
    """What the memory of a surrogate depends on; equal for those that need the same."""
    return frozenset(_kind(group, surrogate) for group in surrogate.groups)


def _kind(group: Group, surrogate: Surrogate) -> tuple[int, ...]:
    """More of any of these takes more memory."""
    inner = len(group.steps) > len(group.active)
    copies = len(surrogate.rollout.batch)
    return len(group.active), inner, group.coupling != 0, not surrogate.cached_velocities, copies


def _largest(surrogates: Sequence[Surrogate]) -> list[tuple[Group, Surrogate]]:
    """One group of every kind that no other kind exceeds."""
    kinds = {_kind(group, s): (group, s) for s in surrogates for group in s.groups}

    def exceeded(kind: tuple[int, ...]) -> bool:
        others = (other for other in kinds if other != kind)
        return any(all(a <= b for a, b in zip(kind, o, strict=True)) for o in others)

    return [pair for kind, pair in kinds.items() if not exceeded(kind)]
