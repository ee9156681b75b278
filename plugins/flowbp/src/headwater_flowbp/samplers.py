"""Which steps: the random draws of a surrogate trajectory (arXiv 2606.11075, section 6 there).

Step numbers count from noise. `first` is the first trainable step, `n` the steps of the rollout.
Every function draws a fixed number of values, whatever the batch.
"""

from __future__ import annotations

import torch
from torch import Generator

DIRICHLET = (2.5, 6.0, 2.0)
"""Shapes of the lengths after j, between k and j, and before k."""


def tail_length(n: int, fraction: float) -> int:
    """round(fraction * n) steps, at least one."""
    return max(1, round(fraction * n))


def first_trainable(n: int, tail: float) -> int:
    """First step of the last `tail` of n steps."""
    return n - tail_length(n, tail)


def draw_tail(n: int, fraction: float, generator: Generator) -> int:
    """A step uniform over the last `tail_length`."""
    count = tail_length(n, fraction)
    return n - count + _uniform(count, generator)


def late_biased(
    first: int, end: int, count: int, bias: float, generator: Generator, origin: int | None = None
) -> list[int]:
    """`count` different steps of first .. end-1, probability proportional to (i - origin + 1)^bias.

    origin: where positions count from; `first` where it is None.
    """
    if count == 0:
        return []
    origin = first if origin is None else origin
    position = torch.arange(first - origin + 1, end - origin + 1, dtype=torch.float64)
    chosen = torch.multinomial(position**bias, count, replacement=False, generator=generator)
    return sorted(first + int(i) for i in chosen)


def evenly(first: int, last: int, count: int, generator: Generator) -> list[int]:
    """`count` steps of first .. last with stride (steps // count), the first one uniform."""
    length = last - first + 1
    stride = length // count
    start = first + _uniform(length - (count - 1) * stride, generator)
    return [start + i * stride for i in range(count)]


def split_count(count: int, before: int, after: int) -> tuple[int, int]:
    """Share `count` active steps over two segments by length, at least one each.

    ValueError where that cannot be.
    """
    if not 2 <= count <= before + after:
        raise ValueError(
            f"{count} active steps cannot be shared over segments of {before} and {after} steps, "
            f"at least one each"
        )
    share = round(count * before / (before + after))
    low, high = max(1, count - after), min(before, count - 1)
    share = min(max(share, low), high)
    return share, count - share


def draw_pair(kind: str, n: int, tail: float, cap: int, generator: Generator) -> tuple[int, int]:
    """The steps k < j at which the trajectory is split.

    kind: uniform, dirichlet, midpoint or midpoint-j. cap: largest reverse index n - j of j under
    dirichlet, 0 for none. ValueError where too few steps are trainable.
    """
    first = first_trainable(n, tail)
    least = 3 if kind == "dirichlet" else 2
    if n - first < least:
        raise ValueError(
            f"split {kind!r} needs at least {least} trainable steps, the last {tail:g} of "
            f"{n} steps are {n - first}"
        )
    if kind == "uniform":
        k, j = sorted(first + int(i) for i in torch.randperm(n - first, generator=generator)[:2])
        return k, j
    if kind == "midpoint":
        k = first + _uniform(n - 1 - first, generator)
        return k, k + (n - k) // 2
    if kind == "midpoint-j":
        j = first + 1 + _uniform(n - 1 - first, generator)
        return first + (j - first) // 2, j
    after, between, _ = _lengths(n - first, cap, generator)
    return n - (after + between + 1), n - (after + 1)


def _lengths(total: int, cap: int, generator: Generator) -> tuple[int, int, int]:
    """Rounded Dirichlet lengths, at least 1 each, the remainder to the largest."""
    gammas = [_gamma(shape, generator) for shape in DIRICHLET]
    lengths = [max(1, round(total * g / sum(gammas))) for g in gammas]
    lengths[lengths.index(max(lengths))] += total - sum(lengths)
    after, between, before = lengths
    overflow = max(0, after + 1 - cap) if cap else 0
    return after - overflow, between, before + overflow


def _gamma(shape: float, generator: Generator) -> float:
    """A gamma variate of whole or half shape: exponentials, and half a squared normal."""
    whole = int(shape)
    uniform = torch.rand(whole, generator=generator, dtype=torch.float64)
    value = float(-torch.log1p(-uniform).sum())
    if shape != whole:
        value += float(torch.randn((), generator=generator, dtype=torch.float64)) ** 2 / 2
    return value


def _uniform(count: int, generator: Generator) -> int:
    return int(torch.randint(count, (), generator=generator))
