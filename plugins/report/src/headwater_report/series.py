"""From metrics to the lines of charts: running means, evaluations, profiles over an index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from headwater_report.charts import Line, Point
from headwater_report.reading import Metrics, Record

RUNNING = 20
"""A running mean covers 1 / RUNNING of a run's steps, one at least."""
MOST = 300
"""Points of a line at most; a column has fewer places."""


@attrs.frozen
class Mean:
    """Of some values that are finite."""

    mean: float
    se: float
    """NaN for fewer than two values."""
    n: int


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and standard error (unbiased variance) of the finite values."""
    fine = [value for value in values if math.isfinite(value)]
    n = len(fine)
    if n == 0:
        return Mean(math.nan, math.nan, 0)
    mean = math.fsum(fine) / n
    if n == 1:
        return Mean(mean, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in fine) / (n - 1)
    return Mean(mean, math.sqrt(variance / n), n)


def column(metrics: Metrics, name: str) -> list[Point]:
    """(step, value) of a metric, in the steps that have it."""
    return [(float(step), row[name]) for step, row in metrics.items() if name in row]


def window(count: int) -> int:
    """Values that a running mean of `count` values covers; odd."""
    size = count // RUNNING
    return size if size % 2 else size + 1


def smoothed(points: Sequence[Point]) -> tuple[list[Point], list[float]]:
    """Centred running means and their standard errors; the ends use what is there.

    The error is that of `window` independent values: it has the trend within the window in it, and
    not what a step owes to the one before.
    """
    half = window(len(points)) // 2
    every = max(1, len(points) // MOST)
    chosen = sorted({*range(0, len(points), every), len(points) - 1})
    values = [y for _, y in points]
    means = [mean_of(values[max(0, i - half) : i + half + 1]) for i in chosen]
    return [(points[i][0], m.mean) for i, m in zip(chosen, means, strict=True)], [
        m.se for m in means
    ]


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most about `MOST` points: of each stretch the least and the largest, in their order."""
    if len(points) <= MOST:
        return list(points)
    size = -(-2 * len(points) // MOST)
    out: list[Point] = []
    for start in range(0, len(points), size):
        part = [p for p in points[start : start + size] if math.isfinite(p[1])]
        if part:
            ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
            out += sorted(ends)
        else:
            out.append((points[start][0], math.nan))
    return out


def training_line(name: str, run: int, record: Record) -> Line | None:
    """A metric of every step: its running mean, with the steps themselves behind.

    The learning rate is no measurement, and is drawn as it is.
    """
    points = column(record.steps, name)
    if not any(math.isfinite(y) for _, y in points):
        return None
    if window(len(points)) < 3 or name == "lr":
        return Line(run, record.label, thinned(points), dots=len(points) <= 12)
    means, errors = smoothed(points)
    return Line(run, record.label, means, errors, faint=thinned(points))


def evaluation_line(key: str, run: int, record: Record) -> Line | None:
    """A reward on the held-out prompts at every evaluation, with its standard error.

    Of a change, which is one from step 0, that step is a point too.
    """
    points = column(record.evaluations, key)
    if not any(math.isfinite(y) for _, y in points):
        return None
    errors = [record.evaluations[int(step)].get(f"{key}_se", math.nan) for step, _ in points]
    if key.startswith("change/") and 0 in record.evaluations and points[0][0] > 0:
        points, errors = [(0.0, 0.0), *points], [0.0, *errors]
    return Line(run, record.label, points, errors, dots=len(points) <= 40)


def profile_line(start: str, run: int, record: Record) -> Line | None:
    """Metrics `start` + INDEX by their index: mean over the optimizer steps and its error."""
    indices = sorted(
        {
            int(rest)
            for row in record.steps.values()
            for name in row
            if name.startswith(start) and (rest := name.removeprefix(start)).isdecimal()
        }
    )
    found = [mean_of([y for _, y in column(record.steps, f"{start}{i}")]) for i in indices]
    if not any(m.n for m in found):
        return None
    points = [(float(i), m.mean) for i, m in zip(indices, found, strict=True)]
    return Line(run, record.label, points, [m.se for m in found], dots=len(points) <= 60)
