"""Means with standard errors, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs


def without_nan(record: Any) -> Any:
    """A record for JSON, which has no NaN and no infinity: null stands for them."""
    if isinstance(record, float):
        return record if math.isfinite(record) else None
    if isinstance(record, Mapping):
        return {key: without_nan(value) for key, value in record.items()}
    return [without_nan(v) for v in record] if isinstance(record, list) else record


@attrs.frozen
class Estimate:
    """A mean, its standard error, and how many values it comes from."""

    mean: float
    se: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.se:.4f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error (unbiased variance); se is 0 for a single value."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, 0.0, n)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return Estimate(mean, math.sqrt(variance / n), n)


def estimate_by_prompt(values: Sequence[Sequence[float]]) -> Estimate:
    """Mean over all samples, and its standard error over prompts.

    values: one row a prompt, all of one length. Samples of a prompt are not independent, so each
    prompt counts once, by its mean, and n is their number. A single prompt has only its samples to
    tell an error from; of a single value it is NaN.
    """
    means = [math.fsum(row) / len(row) for row in values]
    found = estimate(means if len(values) > 1 else values[0])
    return found if found.n > 1 else attrs.evolve(found, se=math.nan)


def paired(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Mean change of the same samples, with its paired standard error."""
    return estimate([b - a for a, b in zip(before, after, strict=True)])


def compared(before: Sequence[float], after: Sequence[float]) -> dict[str, dict[str, float]]:
    """`before`, `after` and the paired `difference`, for summary.json.

    The difference also holds `se_independent`, as if the two samples were independent.
    """
    first, last = estimate(before), estimate(after)
    difference = attrs.asdict(paired(before, after))
    difference["se_independent"] = math.hypot(first.se, last.se)
    return {"before": attrs.asdict(first), "after": attrs.asdict(last), "difference": difference}
