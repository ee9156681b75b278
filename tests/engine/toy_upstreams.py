"""Two objectives for the engine, written from the formulas and not from core's helpers."""

from __future__ import annotations

import torch
from torch import Tensor

from headwater.markers import hookimpl


class DownhillUpstream:
    """Endpoint upstream: an Euler step subtracts h v, so dL/dv_i = -h_i dL/dx_N."""

    upstream = "endpoint"

    @hookimpl
    def compute_upstream(self, group, rollout, velocities, carried):
        assert velocities is None, "an endpoint upstream needs no velocity"
        h = rollout.sigmas[:-1] - rollout.sigmas[1:]
        return torch.stack([-float(h[i]) * carried for i in group.steps])


class PerStepEnergy:
    """Per-step upstream of L = sum_i w_i sum_b a_b mean(v^2 / 2 + cos v): s = w a (v - sin v) / D.

    Curved in v, so that a stale velocity gives another gradient.
    """

    upstream = "per-step"

    def __init__(self) -> None:
        self.carried_seen: set[object] = set()

    @hookimpl
    def compute_upstream(self, group, rollout, velocities, carried):
        self.carried_seen.add(carried)
        pairs = zip(group.steps, velocities, strict=True)
        return torch.stack([self.upstream_of(i, v) for i, v in pairs])

    def upstream_of(self, step: int, v: Tensor) -> Tensor:
        weight = 0.4 + 0.3 * step
        advantage = torch.tensor([1.0, -0.6, 0.35], dtype=v.dtype)[: len(v)]
        return weight * advantage.view(-1, *[1] * (v.dim() - 1)) * (v - v.sin()) / v[0].numel()
