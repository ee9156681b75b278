"""The arithmetic of `flowbp-hat`: which steps are active, and how the others are spread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor


def hat_basis(active: Sequence[int], steps: Sequence[int], sigmas: Sequence[float]) -> Tensor:
    """Cell averages of the hat functions through the sigmas of the active steps: (A, S) float64.

    A hat is 1 at its own step's sigma, falls linearly to 0 at its neighbours', and is constant
    beyond the first and the last. Every cell lies between two neighbours, where hats are linear,
    so its average is the value at its middle. The columns sum to 1: no step is dropped.
    """
    nodes = torch.tensor([sigmas[a] for a in active], dtype=torch.float64)  # falling
    middles = torch.tensor([(sigmas[i] + sigmas[i + 1]) / 2 for i in steps], dtype=torch.float64)
    rows = torch.zeros(len(active), len(steps), dtype=torch.float64)
    if len(active) == 1:
        return rows + 1
    right = torch.searchsorted(-nodes, -middles).clamp(1, len(active) - 1)
    left = right - 1
    share = ((nodes[left] - middles) / (nodes[left] - nodes[right])).clamp(0, 1)
    columns = torch.arange(len(steps))
    rows[left, columns] = 1 - share
    rows[right, columns] += share
    return rows


def strata(n: int, count: int, generator: Generator) -> list[int]:
    """One step uniform in each of `count` parts of n steps, as equal as they can be."""
    edges = [i * n // count for i in range(count + 1)]
    return [
        low + int(torch.randint(high - low, (), generator=generator))
        for low, high in pairwise(edges)
    ]


def late_biased(n: int, count: int, bias: float, generator: Generator) -> list[int]:
    """`count` different steps, step i with probability proportional to (i + 1)^bias."""
    weights = torch.arange(1, n + 1, dtype=torch.float64) ** bias
    chosen = torch.multinomial(weights, count, replacement=False, generator=generator)
    return sorted(chosen.tolist())


def residual(
    start: Tensor, masses: Sequence[float], velocities: Sequence[Tensor], end: Tensor
) -> Tensor:
    """Mean absolute difference of `start - sum m v` and `end`, (B,). Tensors (B, *latent)."""
    predicted = start
    for mass, velocity in zip(masses, velocities, strict=True):
        predicted = predicted - mass * velocity
    return (predicted - end).abs().flatten(1).mean(dim=1)
