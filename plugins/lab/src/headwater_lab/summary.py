"""From records to the numbers that are shown: means over rollouts, with standard errors.

With e_m the gradient of draw m of M on one rollout, e their mean, g the reference and
S = sum_m |e_m - e|^2 / (M - 1):

    cosine            e . g / |e| |g|
    cosine_one        the same of a single draw, mean over m
    cosine_expected   that of the expected gradient: the noise of M draws is taken out
    norm_ratio        |e| / |g|
    bias^2            (|e - g|^2 - S / M) / |g|^2, unbiased, hence it may be negative
    variance          S / |g|^2, of a single draw
    noise             sqrt(S) over the norm of the expected gradient, free of the gradient's scale
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwater_lab.measurement import Pass, Record, finite
from headwater_lab.watching import Part

Value = dict[str, Any]
"""`mean`, `se` (None where it cannot be told) and `n`, the values it comes from."""


def spread(values: Sequence[float]) -> Value:
    """Mean and standard error; values that are no numbers are left out and not counted."""
    fine = finite(values)
    n = len(fine)
    if n == 0:
        return {"mean": None, "se": None, "n": 0}
    mean = math.fsum(fine) / n
    if n == 1:
        return {"mean": mean, "se": None, "n": 1}
    variance = math.fsum((value - mean) ** 2 for value in fine) / (n - 1)
    return {"mean": mean, "se": math.sqrt(variance / n), "n": n}


def rooted(values: Sequence[float]) -> Value:
    """Square root of a mean that may be negative by chance, with the error of the root."""
    square = spread(values)
    if square["mean"] is None:
        return square
    root = math.sqrt(max(0.0, square["mean"]))
    se = None if square["se"] is None or root == 0 else square["se"] / (2 * root)
    return {"mean": root, "se": se, "n": square["n"], "squared": square}


def summarised(records: Sequence[Record], blocks: Sequence[str]) -> dict[str, Any]:
    """The numbers of one estimator over all rollouts."""
    every = torch.ones(len(blocks), dtype=torch.bool)
    out = _whole(records, every)
    out["cosine_one"] = _one_draw(records)
    for name, function in (("cosine_expected", _cosine_expected), ("noise", _noise)):
        out[name] = spread([function(record) for record in records])
    out["draws"] = max(len(record.passes) for record in records)
    out["draws_indices"] = any(made.drawn for record in records for made in record.passes)
    out["blocks"] = [
        {"block": name, **_whole(records, torch.arange(len(blocks)) == number)}
        for number, name in enumerate(blocks)
    ]
    out["steps"] = [
        {"step": steps[0], **values}
        for steps, values in _parts([[p for m in r.passes for p in m.parts] for r in records])
    ]
    out["groups"] = [
        {"steps": list(steps), **values}
        for steps, values in _parts([[p for m in r.passes for p in m.groups] for r in records])
    ]
    out["diagnostics"] = _diagnostics(records)
    out["each"] = [row for record in records for row in _each(record)]
    return out | costs([record.passes for record in records])


def _whole(records: Sequence[Record], mask: Tensor) -> dict[str, Any]:
    """Over the parameters of some blocks."""
    return {
        "cosine": spread([_cosine(record, mask) for record in records]),
        "norm_ratio": spread([_ratio(record.ee, record, mask) ** 0.5 for record in records]),
        "bias": rooted([_bias_squared(record, mask) for record in records]),
        "variance": spread([_variance(record, mask) for record in records]),
    }


def _sum(values: Tensor, mask: Tensor) -> float:
    return float(values[mask].sum())


def _ratio(values: Tensor, record: Record, mask: Tensor) -> float:
    """Over |g|^2; NaN where the reference is zero."""
    whole = _sum(record.gg, mask)
    return _sum(values, mask) / whole if whole > 0 else math.nan


def _cosine(record: Record, mask: Tensor) -> float:
    norms = math.sqrt(_sum(record.ee, mask) * _sum(record.gg, mask))
    return _sum(record.eg, mask) / norms if norms > 0 else math.nan


def _scatter(record: Record, mask: Tensor) -> float:
    """S; NaN for one draw of an estimator that draws, 0 for one that does not."""
    count = len(record.passes)
    if not record.passes[0].drawn:
        return 0.0
    return _sum(record.scatter, mask) / (count - 1) if count > 1 else math.nan


def _bias_squared(record: Record, mask: Tensor) -> float:
    whole = _sum(record.gg, mask)
    if whole == 0:
        return math.nan
    noise = _scatter(record, mask) / len(record.passes)
    return (_sum(record.difference, mask) - noise) / whole


def _variance(record: Record, mask: Tensor) -> float:
    whole = _sum(record.gg, mask)
    return _scatter(record, mask) / whole if whole > 0 else math.nan


def _one_draw(records: Sequence[Record]) -> Value:
    """Over rollouts; with a single rollout, over its draws."""
    rows = []
    for record in records:
        gg = float(record.gg.sum())
        pairs = zip(record.draw_ee, record.draw_eg, strict=True)
        rows.append([eg / math.sqrt(ee * gg) if ee * gg > 0 else math.nan for ee, eg in pairs])
    if len(rows) == 1:
        return spread(rows[0])
    return spread([_mean(row) for row in rows])


def _mean(values: Sequence[float]) -> float:
    fine = finite(values)
    return math.fsum(fine) / len(fine) if fine else math.nan


def _expected_square(record: Record) -> float:
    """|E e|^2 without the noise of the mean."""
    every = torch.ones_like(record.ee, dtype=torch.bool)
    return _sum(record.ee, every) - _scatter(record, every) / len(record.passes)


def _cosine_expected(record: Record) -> float:
    count, mean = len(record.draw_eg), _mean(record.draw_eg)
    square = mean**2
    if record.passes[0].drawn:
        if count < 2:
            return math.nan
        square -= sum((v - mean) ** 2 for v in record.draw_eg) / (count - 1) / count
    norms = _expected_square(record) * float(record.gg.sum())
    return math.copysign(math.sqrt(max(0.0, square) / norms), mean) if norms > 0 else math.nan


def _noise(record: Record) -> float:
    every = torch.ones_like(record.ee, dtype=torch.bool)
    square, scatter = _expected_square(record), _scatter(record, every)
    return math.sqrt(scatter / square) if square > 0 else math.nan


def _parts(rows: Sequence[Sequence[Part]]) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """By their steps: each rollout counts once, by its mean; `count` is how many there were."""
    keys = sorted({part.steps for row in rows for part in row})
    out = []
    for key in keys:
        own = [[part for part in row if part.steps == key] for row in rows]
        own = [row for row in own if row]
        values: dict[str, Any] = {
            name: spread([_mean([getattr(part, name) for part in row]) for row in own])
            for name in ("norm", "norm_ratio", "cosine")
        }
        out.append((key, {**values, "count": sum(len(row) for row in own)}))
    return out


def _diagnostics(records: Sequence[Record]) -> dict[str, Value]:
    """What the estimator says of itself, means over draws and then over rollouts."""
    names = dict.fromkeys(name for r in records for made in r.passes for name in made.diagnostics)
    out = {}
    for name in names:
        rows = [[made.diagnostics.get(name, math.nan) for made in r.passes] for r in records]
        out[name] = spread([_mean(row) for row in rows])
    return out


def _each(record: Record) -> list[dict[str, Any]]:
    """Every draw by itself: its cosine, its norm ratio, and what the estimator said of it."""
    gg, out = float(record.gg.sum()), []
    pairs = zip(record.draw_ee, record.draw_eg, record.passes, strict=True)
    for draw, (ee, eg, made) in enumerate(pairs):
        cosine = eg / math.sqrt(ee * gg) if ee * gg > 0 else math.nan
        ratio = math.sqrt(ee / gg) if gg > 0 else math.nan
        found = {"rollout": record.rollout, "draw": draw, "cosine": cosine, "norm_ratio": ratio}
        out.append({**found, "diagnostics": dict(made.diagnostics)})
    return out


def costs(passes: Sequence[Sequence[Pass]]) -> dict[str, Any]:
    """Seconds of one gradient of a rollout; network work per sample. One row a rollout."""
    functions: Mapping[str, Callable[[Any], float]] = {
        "seconds": lambda made: made.seconds,
        "forwards": lambda made: made.forwards,
        "backwards": lambda made: made.backwards,
    }
    return {
        name: spread([_mean([function(made) for made in row]) for row in passes])
        for name, function in functions.items()
    }


def reference_summary(
    gradients: Sequence[Tensor], parts: Sequence[Sequence[Part]], blocks: Sequence[str]
) -> dict[str, Any]:
    """Norms of the reference: whole, by block and by step.

    gradients: |g|^2 by block (K,) of every rollout.
    """
    steps = []
    for key, values in _parts(parts):
        own = [[part.state_gradient for part in row if part.steps == key] for row in parts]
        state = spread([_mean(row) for row in own])
        steps.append({"step": key[0], "norm": values["norm"], "state_gradient": state})
    return {
        "norm": spread([math.sqrt(float(gg.sum())) for gg in gradients]),
        "blocks": [
            {"block": name, "norm": spread([math.sqrt(float(gg[number])) for gg in gradients])}
            for number, name in enumerate(blocks)
        ],
        "steps": steps,
    }
