"""What a comparison of two models comes to: numbers by reward and by tag, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Console
from rich.table import Table

from headwater.comparison_setup import Request, Setup
from headwater.errors import GuardError
from headwater.geometry import Draw
from headwater.settings import unstructure
from headwater.statistics import Estimate, estimate_by_prompt, without_nan
from headwater.summary import versions
from headwater.types import Prompt

if TYPE_CHECKING:
    from headwater.comparison import Pass

UNTAGGED = "untagged"
PARTS = ("base", "aligned", "difference", "win_rate")
Rows = Sequence[Sequence[float]]
"""One row a prompt, one value a sample."""


def build(
    setup: Setup, request: Request, base: Pass, aligned: Pass, seconds: float, folder: str
) -> dict[str, Any]:
    """The report, ready for JSON but for NaN where a standard error cannot be told."""
    run = setup.run
    prompts, seeds = run.evaluation_prompts, request.seeds
    rewards = {}
    for key, named in run.held_out.items():
        before, after = (_rows(side.scores[key], seeds) for side in (base, aligned))
        rewards[key] = {
            "use": named.entry.name,
            "settings": unstructure(named.plugin),
            "trained": key in setup.trained,
            **_judged(key, before, after, prompts),
        }
    table = run.file.rollout
    return {
        "run": run.file.name,
        "checkpoint": "base" if setup.checkpoint is None else setup.checkpoint.name,
        "weights": setup.weights,
        "prompts": {"file": setup.prompts, "count": len(prompts), "samples": seeds},
        "seed": request.seed,
        "steps": run.file.evaluation.steps or table.steps,
        "guidance": table.guidance,
        "height": table.height,
        "width": table.width,
        "rewards": rewards,
        "diversity": {
            key: _compared(
                [[v] for v in base.diversity[key]], [[v] for v in aligned.diversity[key]]
            )
            for key in base.diversity
        },
        "warnings": warnings(rewards),
        "seconds": seconds,
        "versions": versions(run),
        "folder": folder,
    }


def _rows(values: Sequence[float], seeds: int) -> list[Sequence[float]]:
    return [values[i : i + seeds] for i in range(0, len(values), seeds)]


def _judged(key: str, base: Rows, aligned: Rows, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """One reward: over all prompts, and by tag where prompts have one.

    Prompts with a score that is not finite, before or after, are left out and counted.
    """
    fine = [i for i, row in enumerate(zip(base, aligned, strict=True)) if _finite(*row)]
    if not fine:
        raise GuardError(f"reward {key!r} is not finite for any prompt")
    tags: dict[str, list[int]] = {}
    for i in fine:
        tags.setdefault(str(prompts[i].metadata.get("tag", UNTAGGED)), []).append(i)
    found: dict[str, Any] = _compared([base[i] for i in fine], [aligned[i] for i in fine])
    found["dropped"] = len(base) - len(fine)
    if set(tags) == {UNTAGGED}:
        return found
    found["tags"] = {
        tag: _compared([base[i] for i in rows], [aligned[i] for i in rows])
        for tag, rows in tags.items()
    }
    found["mean_over_tags"] = _mean_of(list(found["tags"].values()))
    return found


def _finite(*rows: Sequence[float]) -> bool:
    return all(math.isfinite(value) for row in rows for value in row)


def _compared(base: Rows, aligned: Rows) -> dict[str, dict[str, float]]:
    """Mean, standard error and n of both, of the paired difference and of the win rate."""
    pairs = [list(zip(b, a, strict=True)) for b, a in zip(base, aligned, strict=True)]
    rows = {
        "base": base,
        "aligned": aligned,
        "difference": [[a - b for b, a in row] for row in pairs],
        "win_rate": [[1.0 if a > b else 0.5 if a == b else 0.0 for b, a in row] for row in pairs],
    }
    return {part: attrs.asdict(estimate_by_prompt(values)) for part, values in rows.items()}


def _mean_of(parts: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Every tag counts once, as in GenEval's overall score; n is the number of tags."""
    out = {}
    for name in PARTS:
        each = [part[name] for part in parts]
        mean = math.fsum(e["mean"] for e in each) / len(each)
        se = math.sqrt(math.fsum(e["se"] ** 2 for e in each)) / len(each)
        out[name] = attrs.asdict(Estimate(mean, se, len(each)))
    return out


def warnings(rewards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Trained rewards that rose while held-out ones fell, each by more than its standard error."""
    change = {key: row["difference"] for key, row in rewards.items()}
    rose = [k for k, d in change.items() if rewards[k]["trained"] and d["mean"] > d["se"]]
    fell = [k for k, d in change.items() if not rewards[k]["trained"] and d["mean"] < -d["se"]]
    if not (rose and fell):
        return []
    return [
        f"reward hacking: {_changes(rose, change)} (trained on) rose while "
        f"{_changes(fell, change)} (held out) fell"
    ]


def _changes(keys: Sequence[str], change: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{k} {change[k]['mean']:+.3g} ± {change[k]['se']:.2g}" for k in keys)


def scores_lines(
    draws: Sequence[Draw],
    names: Sequence[str],
    base: Mapping[str, Sequence[float]],
    aligned: Mapping[str, Sequence[float]],
) -> Iterator[dict[str, Any]]:
    """One record a sample; a score that is not finite is null."""
    for i, draw in enumerate(draws):
        yield without_nan(
            {
                "prompt": draw.prompt.text,
                "number": draw.group,
                "seed": draw.seed,
                "image": names[i],
                "tag": draw.prompt.metadata.get("tag"),
                "base": {key: values[i] for key, values in base.items()},
                "aligned": {key: values[i] for key, values in aligned.items()},
            }
        )


def show(report: Mapping[str, Any], console: Console) -> None:
    """The table on a terminal."""
    table = Table("", "base", "aligned", "change (paired)", "win rate")
    for key, row in report["rewards"].items():
        table.add_row(f"{key} ({'trained on' if row['trained'] else 'held out'})", *_cells(row))
        for tag, part in row.get("tags", {}).items():
            table.add_row(f"  {tag}", *_cells(part))
        if "mean_over_tags" in row:
            table.add_row("  mean over tags", *_cells(row["mean_over_tags"]))
    for key, row in report["diversity"].items():
        table.add_row(f"diversity: {key}", *_cells(row)[:3], "")
    console.print(table)
    prompts = report["prompts"]
    say = console.print
    say(
        f"{report['run']}, {report['checkpoint']} ({report['weights']} weights) against the base: "
        f"{prompts['count']} prompts, {prompts['samples']} samples each, same noise; "
        f"errors are over {'prompts' if prompts['count'] > 1 else 'samples'}",
        highlight=False,
    )
    for key, row in report["rewards"].items():
        if row["dropped"]:
            say(f"{key}: {row['dropped']} prompts dropped, a score was not finite", highlight=False)
    for text in report["warnings"]:
        say(f"WARNING: {text}", highlight=False)
    say(f"everything is in {report['folder']}", highlight=False, soft_wrap=True)


def _cells(row: Mapping[str, Any]) -> list[str]:
    base, aligned, change, wins = (row[part] for part in PARTS)
    return [_cell(base, ""), _cell(aligned, ""), _cell(change, "+"), _cell(wins, "", 3)]


def _cell(value: Mapping[str, Any], sign: str, digits: int = 4) -> str:
    se = value["se"]
    known = se is not None and math.isfinite(se)
    return f"{value['mean']:{sign}.{digits}f} ± " + (f"{se:.{digits}f}" if known else "-")
