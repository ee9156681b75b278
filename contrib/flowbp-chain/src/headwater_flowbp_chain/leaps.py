"""The arithmetic of `flowbp-chain`: where leaps begin, and the step that speaks for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor

from headwater.types import Group


def edges(n: int, count: int) -> list[int]:
    """First steps of `count` leaps that share n steps as equally as they can, and n itself."""
    return [r * n // count for r in range(count + 1)]


def draw(sigmas: Sequence[float], bounds: Sequence[int], generator: Generator) -> list[int]:
    """One step of each leap, with probability h_i over the leap's length in sigma.

    A point uniform in sigma falls into one step's cell. One number is drawn a leap.
    """
    points = torch.rand(len(bounds) - 1, generator=generator, dtype=torch.float64).tolist()
    drawn = []
    for (first, end), u in zip(pairwise(bounds), points, strict=True):
        at = sigmas[first] - u * (sigmas[first] - sigmas[end])
        # Rounding may put the point on the leap's end.
        inside = (i for i in range(first, end - 1) if at > sigmas[i + 1])
        drawn.append(next(inside, end - 1))
    return drawn


def chained(
    sigmas: Sequence[float], bounds: Sequence[int], active: Sequence[int], coupling: float
) -> list[Group]:
    """A group a leap, from its active step up to the next leap's.

    The row carries the leap's whole length, H / h of the active step: times the upstream -h g that
    is -H g, whose mean over the draw is the sum over the leap's steps. The first leap's gradient
    goes nowhere further, so its coupling is 0.
    """
    groups = []
    for r, (step, after) in enumerate(pairwise([*active, bounds[-1]])):
        length = sigmas[bounds[r]] - sigmas[bounds[r + 1]]
        basis = torch.zeros(1, after - step, dtype=torch.float64)
        basis[0, 0] = length / (sigmas[step] - sigmas[step + 1])
        groups.append(Group(tuple(range(step, after)), (step,), basis, coupling if r else 0.0))
    return groups


def miss(
    start: Tensor, lengths: Sequence[float], velocities: Sequence[Tensor], end: Tensor
) -> Tensor:
    """Mean absolute difference of `start - sum H v` and `end`, (B,). Tensors (B, *latent)."""
    predicted = start
    for length, velocity in zip(lengths, velocities, strict=True):
        predicted = predicted - length * velocity
    return (predicted - end).abs().flatten(1).mean(dim=1)
