"""The arithmetic of leaps: which steps they start at, and how far they miss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def draw_anchors(
    steps: int, leaps: int, span: tuple[float, float], generator: Generator
) -> list[int]:
    """`leaps` different steps, uniform over the part `span` of all steps, increasing.

    ValueError where the part holds fewer steps than leaps.
    """
    # .55 * 20 is 11.000000000000002: a hair of rounding is no step.
    first, last = math.floor(span[0] * steps + 1e-9), math.ceil(span[1] * steps - 1e-9)
    if last - first < leaps:
        raise ValueError(
            f"{leaps} leaps need as many steps to start at, range {list(span)} of {steps} steps "
            f"holds {last - first}"
        )
    chosen = torch.randperm(last - first, generator=generator)[:leaps]
    return sorted(first + int(i) for i in chosen)


def leap_distance(start: Tensor, velocity: Tensor, size: float, target: Tensor) -> Tensor:
    """Mean absolute difference of `start - size velocity` and `target`: (B,).

    All tensors (B, *latent); size: sigma at the start less sigma at the target.
    """
    return (start - size * velocity - target).abs().flatten(1).mean(dim=1)


def similarity_weights(distances: Sequence[Tensor], tau: float) -> Tensor:
    """1 / sum_l max(d_l, tau) over the leaps: (B,)."""
    return 1 / torch.stack([d.clamp(min=tau) for d in distances]).sum(dim=0)
