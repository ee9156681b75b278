"""How well JAGG would do on a run: measured on a few of its rollouts, before training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from headwater.collection import Collected, collect
from headwater.composition import compose
from headwater.errors import InputError
from headwater.geometry import Schedule, rollout_draws, schedule_of
from headwater.stage import Stage, open_stage
from headwater.types import Group
from headwater_jagg.basis import cut, fit_basis
from headwater_jagg.estimator import Jagg
from headwater_jagg.measurement import Part, measure
from headwater_jagg.report import chord_distance


def probe(
    file: Path, overrides: Sequence[str] = (), rollouts: int = 3, threshold: float = 0.9
) -> dict[str, Any]:
    """Likeness of JAGG's gradient to the exact one for every group, ready for JSON.

    Each measurement is one micro-batch. With a calibrated basis the first rollout only fits it,
    and is drawn in addition. Raises InputError for a run of another estimator.
    """
    run = compose(file, overrides)
    jagg = run.estimator.plugin
    if not isinstance(jagg, Jagg):
        raise InputError(
            str(file), [f"[estimator]: probe measures jagg, got {run.estimator.entry.name!r}"]
        )
    stage, schedule = open_stage(run, str(PartialState().device)), schedule_of(run, 0)
    samples = run.file.prompts.per_step * run.file.prompts.group
    parts: list[Part] = []
    rows: list[list[dict[str, float]]] = []
    calibrated = jagg.basis == "calibrated"
    for number in range(rollouts + calibrated):
        for item in collect(stage, rollout_draws(run, number), 0, schedule, samples):
            if not parts:
                steps = cut(schedule.trained, jagg.window)
                parts = [jagg.part(i, s, item.rollout) for i, s in enumerate(steps)]
            if number < calibrated:
                parts = [_fitted(stage, item, part, schedule) for part in parts]
                break
            found = [_measured(stage, item, part, schedule) for part in parts]
            rows.append(found)
    groups = [_group(part, [row[k] for row in rows]) for k, part in enumerate(parts)]
    return {
        "run": run.file.name,
        "window": jagg.window,
        "basis": jagg.basis,
        "interpolate": jagg.interpolate,
        "measurements": len(rows),
        "threshold": threshold,
        "routed": routed_fraction([g["cosine"]["mean"] for g in groups], threshold),
        "groups": groups,
    }


def routed_fraction(cosines: Sequence[float], threshold: float) -> float:
    """Largest part of the groups, from the noisy end, that all keep the threshold."""
    kept = 0
    while kept < len(cosines) and cosines[kept] >= threshold:
        kept += 1
    return kept / len(cosines)


def _upstream(stage: Stage, item: Collected, part: Part, schedule: Schedule) -> torch.Tensor:
    """(S, B, *latent) of a group, from the rollout's own velocities."""
    group = Group(part.steps, part.steps, torch.eye(len(part.steps)))
    velocities = torch.stack([item.rollout.velocity(i) for i in part.steps])
    s_SB: torch.Tensor = stage.manager.hook.compute_upstream(
        group=group, rollout=item.rollout, credit=item.credit, velocities=velocities, carried=None
    )
    return s_SB


def _fitted(stage: Stage, item: Collected, part: Part, schedule: Schedule) -> Part:
    """The group with a basis fitted to this micro-batch."""
    if not part.middle:
        return part
    s_SB = _upstream(stage, item, part, schedule)
    found = measure(stage.backbone, item.rollout, part, s_SB, fit=True, whole=False)
    basis = fit_basis(part.basis, part.nodes, found.KK, found.Kt)
    return Part(part.position, part.steps, part.nodes, basis)


def _measured(stage: Stage, item: Collected, part: Part, schedule: Schedule) -> dict[str, float]:
    """Cosine, relative error, norm ratio and distance from the chord on one micro-batch."""
    s_SB = _upstream(stage, item, part, schedule)
    found = measure(stage.backbone, item.rollout, part, s_SB, fit=False, whole=True)
    cosine, error, ratio = found.likeness
    states = item.rollout.latents[list(part.steps)]
    far = 0.0
    if len(part.steps) > 1:
        far = float(chord_distance(states, item.rollout.sigmas[list(part.steps)]).amax(0).mean())
    return {"cosine": cosine, "relative_error": error, "norm_ratio": ratio, "chord": far}


def _group(part: Part, rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Means and standard errors; measurements without an upstream are left out and counted."""
    fine = [row for row in rows if math.isfinite(row["cosine"])]
    if not fine:
        raise InputError(
            "probe", ["no sample had an advantage; draw more rollouts or larger groups"]
        )
    out: dict[str, Any] = {"group": part.position, "steps": list(part.steps), "n": len(fine)}
    for key in fine[0]:
        values = [row[key] for row in fine]
        se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        out[key] = {"mean": statistics.mean(values), "se": se if math.isfinite(se) else None}
    return out


def table(found: dict[str, Any]) -> str:
    """Text of a probe."""
    head = f"{'steps':>10} {'cosine':>16} {'rel. error':>16} {'norm':>6} {'off chord':>10}"
    lines = [head]
    for group in found["groups"]:
        steps = f"{group['steps'][0]}..{group['steps'][-1]}"
        cells = [_number(group["cosine"]), _number(group["relative_error"])]
        norm, chord = group["norm_ratio"]["mean"], group["chord"]["mean"]
        lines.append(f"{steps:>10} {cells[0]:>16} {cells[1]:>16} {norm:>6.2f} {chord:>10.3f}")
    lines.append(
        f"routed = {found['routed']:.2f} keeps every routed group's cosine at "
        f"{found['threshold']} ({found['measurements']} micro-batches, basis {found['basis']!r})"
    )
    return "\n".join(lines)


def _number(value: dict[str, Any]) -> str:
    se = "" if value["se"] is None else f" ± {value['se']:.3f}"
    return f"{value['mean']:.3f}{se}"


def picture(found: dict[str, Any], path: Path) -> None:
    """Cosine and relative error of every group, with standard errors."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = found["groups"]
    names = [f"{g['steps'][0]}-{g['steps'][-1]}" for g in groups]
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for key, label in (("cosine", "cosine"), ("relative_error", "relative error")):
        means = [g[key]["mean"] for g in groups]
        errors = [g[key]["se"] or 0.0 for g in groups]
        axes.errorbar(names, means, errors, marker="o", capsize=3, label=label)
    axes.axhline(found["threshold"], color="grey", linestyle=":", label="threshold")
    axes.set(xlabel="steps of the group, from noise to image", title=found["run"])
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
