"""Every kind of group that the engine meets, and surrogates of them."""

from __future__ import annotations

import torch
from torch import Tensor

from headwater.types import Group, Rollout, Surrogate

N = 7


def ones(active: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    return torch.ones(len(active), len(steps), dtype=torch.float64)


def delta(active: tuple[int, ...], steps: tuple[int, ...], factor: float = 1.0) -> Tensor:
    return torch.tensor([[factor * (a == i) for i in steps] for a in active]).double()


def signed(active: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    """No symmetry, rows of both signs: a swapped row or a transposed basis shows."""
    generator = torch.Generator().manual_seed(len(steps) + 10 * len(active))
    return torch.randn(len(active), len(steps), generator=generator, dtype=torch.float64)


def single(step: int, coupling: float) -> Group:
    return Group((step,), (step,), torch.ones(1, 1, dtype=torch.float64), coupling)


def make_group(steps: range, active: tuple[int, ...], basis, coupling: float) -> Group:
    return Group(tuple(steps), active, basis(active, tuple(steps)), coupling)


KINDS: dict[str, tuple[Group, ...]] = {
    "every step alone, coupled": tuple(single(i, 1.0) for i in range(N)),
    "every step alone, uncoupled": tuple(single(i, 0.0) for i in range(N)),
    "the last three, first uncoupled": (single(4, 0.0), single(5, 1.0), single(6, 1.0)),
    "two leaps": (
        make_group(range(1, 4), (1,), ones, 0.0),
        make_group(range(4, 7), (4,), ones, 0.3),
    ),
    "two leaps, both coupled": (
        make_group(range(4), (0,), ones, 0.6),
        make_group(range(4, 7), (4,), ones, 0.3),
    ),
    "sparse": (make_group(range(N), (1, 4, 6), lambda a, s: delta(a, s, 1.8), 0.0),),
    "bridge": (
        make_group(range(3), (1, 2), delta, 0.0),
        make_group(range(3, 7), (3, 5), delta, 0.5),
    ),
    "signed rows, three groups": (
        make_group(range(2), (0, 1), signed, 1.0),
        make_group(range(2, 5), (2, 4), signed, 0.7),
        make_group(range(5, 7), (5,), signed, 0.2),
    ),
}


def endpoint_cotangent(rollout: Rollout) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(rollout.latents[0].shape, generator=generator).double()


def surrogate_of(groups: tuple[Group, ...], rollout: Rollout, *, cached: bool = False) -> Surrogate:
    return Surrogate(groups, rollout.latents[-1], None, rollout, cached_velocities=cached)
