"""Axes: ranges, round tick values, and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def padded(values: Sequence[float], *, log: bool = False) -> tuple[float, float]:
    """A range around finite values with some room; never empty."""
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** 0.06 if high > low else 2.0
        return max(low / factor, 1e-307), high * factor
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def linear(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], at most `count` + 1 of them.

    whole: integers only.
    """
    power = 10.0 ** math.floor(math.log10((high - low) / count) - 1)
    sizes = [step * power * scale for scale in (1, 10, 100) for step in (1, 2, 5)]
    for size in [max(1.0, size) for size in sizes] if whole else sizes:
        first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
        if last - first <= count:
            return [i * size for i in range(first, last + 1)]
    return [low, high]


def logarithmic(low: float, high: float) -> list[float]:
    """Powers of ten within [low, high]; with few of them 2 and 5 times those too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
    most = 6
    return found[:: -(-len(found) // most)] if found else [low, high]


def number(value: float | None, digits: int = 4) -> str:
    """Short text of a number; a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e6:
        short = f"{value:.{max(0, digits - 2)}e}"
        mantissa, _, power = short.partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(power)}".replace("-", "−")
    text = f"{value:.{digits}g}"
    return (f"{value:.0f}" if "e" in text else text).replace("-", "−")


def tick_texts(values: Sequence[float]) -> list[str]:
    """Tick labels with equally many decimals."""
    gaps = [b - a for a, b in pairwise(values)]
    even = gaps and max(gaps) - min(gaps) < 1e-6 * max(gaps)
    largest = max((abs(value) for value in values), default=0.0)
    if not even or largest >= 1e5 or (largest and largest < 1e-3):
        return [number(value, 3) for value in values]
    decimals = max(0, -math.floor(math.log10(min(gaps)) + 1e-9))
    return [f"{value:.{decimals}f}".replace("-", "−") for value in values]
