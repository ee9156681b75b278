"""A comparison as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater_lab.summary import spread

_COLUMNS = {
    "cosine": "cosine",
    "cosine_one": "one draw",
    "norm_ratio": "norm ratio",
    "bias": "bias",
    "variance": "variance",
}


def progress_line(progress: Any) -> str:
    """One line for an estimator that is done on a rollout; nothing for single draws."""
    if progress.record is None:
        return ""
    record = progress.record
    norms = float(record.ee.sum()) * float(record.gg.sum())
    cosine = f"{float(record.eg.sum()) / norms**0.5:.3f}" if norms > 0 else "undefined"
    seconds = spread([made.seconds for made in record.passes])["mean"]
    return (
        f"rollout {progress.rollout} of {progress.rollouts}: {progress.label}: cosine {cosine}, "
        f"{len(record.passes)} draw(s), {seconds:.2f} s each"
    )


def table(found: dict[str, Any]) -> str:
    """All tables of a comparison."""
    parts = [_head(found), _main(found["estimators"]), _blocks(found["estimators"])]
    return "\n\n".join([*parts, *_steps(found), *_groups(found["estimators"])])


def _head(found: dict[str, Any]) -> str:
    reference = found["reference"]
    return (
        f"{found['run']}: reference {reference['name']}, norm {number(reference['norm'], 4)}, "
        f"{reference['forwards']['mean']:g} forwards and {reference['backwards']['mean']:g} "
        f"backwards a sample, {number(reference['seconds'], 2)} s, "
        f"{reference['peak_memory_bytes'] / 1e6:.1f} MB\n"
        f"{found['rollouts']} rollouts of {found['samples']} samples, {found['draws']} draws each "
        f"of estimators that draw indices; ± standard error over rollouts"
    )


def _main(estimators: Sequence[dict[str, Any]]) -> str:
    residuals = [n for n in ("d_j", "d_0") if any(n in e["diagnostics"] for e in estimators)]
    head = ["estimator", *_COLUMNS.values(), *residuals, "forwards", "backwards", "s", "MB"]
    rows = []
    for one in estimators:
        cells = [number(one[key]) for key in _COLUMNS]
        cells += [number(one["diagnostics"].get(name)) for name in residuals]
        cells += [f"{one[key]['mean']:.1f}" for key in ("forwards", "backwards")]
        cells += [f"{one['seconds']['mean']:.2f}", f"{one['peak_memory_bytes'] / 1e6:.1f}"]
        rows.append([one["name"], *cells])
    return aligned(head, rows)


def _blocks(estimators: Sequence[dict[str, Any]]) -> str:
    names = [block["block"] for block in estimators[0]["blocks"]]
    rows = [
        [name, *(number(one["blocks"][place]["cosine"]) for one in estimators)]
        for place, name in enumerate(names)
    ]
    return aligned(["cosine by block", *(one["name"] for one in estimators)], rows)


def _steps(found: dict[str, Any]) -> list[str]:
    """The reference's norm by step, and each estimator's cosine to its part of that step."""
    own = found["reference"]["steps"]
    if not own:
        return []
    shown = [one for one in found["estimators"] if one["steps"]]
    state = any(step["state_gradient"]["mean"] is not None for step in own)
    head = ["step", "sigma", "reference norm", *(["dL/dx"] if state else [])]
    head += [f"cosine, {one['name']}" for one in shown]
    by_step = [{s["step"]: s["cosine"] for s in one["steps"]} for one in shown]
    rows = []
    for step in own:
        row = [str(step["step"]), f"{found['sigmas'][step['step']]:.3f}", number(step["norm"], 4)]
        row += [number(step["state_gradient"])] if state else []
        rows.append([*row, *(number(cosines.get(step["step"])) for cosines in by_step)])
    return [aligned(head, rows)]


def _groups(estimators: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        [
            one["name"],
            f"{group['steps'][0]}..{group['steps'][-1]}",
            number(group["cosine"]),
            number(group["norm_ratio"]),
        ]
        for one in estimators
        for group in one["groups"]
    ]
    return [aligned(["group of", "steps", "cosine", "norm ratio"], rows)] if rows else []


def number(value: dict[str, Any] | None, digits: int = 3) -> str:
    """A mean and its standard error; a dash for nothing."""
    if value is None or value["mean"] is None:
        return "-"
    se = "" if value["se"] is None else f" ± {value['se']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{se}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    every = [head, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    lines = []
    for row in every:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
