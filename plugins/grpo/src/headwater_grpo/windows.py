"""Which steps of a rollout are noisy and trained: pure functions of the update's number.

Nothing is remembered between updates, so that a window can be replayed from its step alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def first_fraction(steps: int, fraction: float) -> tuple[int, ...]:
    """The first int(fraction * steps) steps (Flow-GRPO trains 0.99 of them)."""
    return tuple(range(int(fraction * steps)))


def window_at(start: int, size: int) -> tuple[int, ...]:
    """Steps start .. start + size - 1."""
    return tuple(range(start, start + size))


def permuted_fraction(order: list[int], fraction: float) -> tuple[int, ...]:
    """DanceGRPO: the first int(len(order) * fraction) of a permutation, sorted.

    order: a random permutation of the trainable steps.
    """
    return tuple(sorted(order[: int(len(order) * fraction)]))


def progressive_start(
    update: int, size: int, total: int, stride: int, updates_each: int, *, roll_back: bool
) -> int:
    """First step of MixGRPO's sliding window: l <- min(l + s, T - w) every `updates_each` updates.

    total: T, the steps a window may cover. roll_back: begin anew after the last position,
    else stay there. The window always has its full size (arXiv 2507.21802, algorithm 1).
    """
    last = total - size
    positions = 1 + math.ceil(last / stride)
    number = update // updates_each
    number = number % positions if roll_back else min(number, positions - 1)
    return min(number * stride, last)


def decaying_start(
    update: int,
    size: int,
    total: int,
    stride: int,
    updates_at: Callable[[int], int],
    *,
    roll_back: bool,
) -> int:
    """As `progressive_start`, where position l lasts `updates_at(l)` updates."""
    last = total - size
    starts = [min(k * stride, last) for k in range(1 + math.ceil(last / stride))]
    lengths = [max(1, updates_at(start)) for start in starts]
    if not roll_back and update >= sum(lengths):
        return last
    left = update % sum(lengths)
    for start, length in zip(starts, lengths, strict=True):
        if left < length:
            return start
        left -= length
    raise AssertionError("an update falls into one position")


def linear_decay(start: int, last: int, most: int, least: int) -> int:
    """int(most (1 - p) + least p) updates at position `start`, p = start / last."""
    p = start / last if last else 0.0
    return int(most * (1 - p) + least * p)


def exponential_decay(start: int, updates: int, threshold: float, rate: float) -> int:
    """ceil(updates exp(-rate max(0, start - threshold))) updates at position `start`."""
    return math.ceil(updates * math.exp(-rate * max(0.0, start - threshold)))
