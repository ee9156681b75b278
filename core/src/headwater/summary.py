"""What a run comes to: `summary.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from headwater.composition import Run
from headwater.evaluation import Evaluated
from headwater.images import save_pairs
from headwater.run_folder import write_text
from headwater.statistics import compared, without_nan


@attrs.frozen(eq=False)
class Summary:
    """What `summary.json` holds."""

    name: str
    steps: int
    """Optimizer steps done, skipped ones included."""
    seconds: float
    """Of training, those before a resumption included."""
    reward: Mapping[str, Any]
    """Weighted total of the trained rewards: before, after, difference, each mean, se, n."""
    rewards: Mapping[str, Any]
    """KEY: the same for each trained reward."""
    held_out: Mapping[str, Any]
    forwards: int
    """Network forwards of training, summed over samples."""
    backwards: int
    peak_memory_bytes: int
    """Of one backward stage; see docs."""
    resident_memory_bytes: int
    versions: Mapping[str, str]
    folder: str
    stopped: str = ""
    """Why the run ended early; empty where it is complete."""
    evaluated_at: int = 0
    """Optimizer step of the evaluation that `after` is from; 0: there is none after the first."""
    warnings: Sequence[str] = ()
    """Of reward hacking, those before a resumption included."""


def write(
    summary: Summary, run: Run, folder: Path, first: Evaluated | None, last: Evaluated | None
) -> None:
    """Write `summary.json`, and the before/after picture where there are two evaluations."""
    if first is not None and last is not None and len(first.images):
        captions = [prompt.text for prompt in run.evaluation_prompts[: len(first.images)]]
        target = folder / "samples" / "before_after.png"
        save_pairs(target, first.images, last.images, captions)
    record = attrs.asdict(summary)
    del record["folder"]
    write_text(folder / "summary.json", json.dumps(without_nan(record), indent=1))


def changes(run: Run, first: Evaluated | None, last: Evaluated | None) -> dict[str, Any]:
    """Before, after and difference of every reward; empty where nothing can be compared."""
    if first is None or last is None:
        return {"reward": {}, "rewards": {}, "held_out": {}}
    each = {key: compared(first.scores[key], last.scores[key]) for key in first.scores}
    return {
        "reward": compared(first.total, last.total),
        "rewards": {key: each[key] for key in run.rewards},
        "held_out": {key: each[key] for key in run.held_out},
    }


def versions(run: Run) -> dict[str, str]:
    """Versions of core, torch and every distribution the run uses."""
    names = {"headwater", "torch", "diffusers", *(n.entry.distribution for n in run.named)}
    out = {}
    for name in sorted(names):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # diffusers, where no backbone needs it
    return out
