"""Whole runs of a few optimizer steps with one plugin among toys."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS = ("a red kite", "two blue boats", "a small green house", "three birds")


def run_table(tables: Mapping[str, Any], prompts: Sequence[str] = PROMPTS) -> dict[str, Any]:
    """A run file of the toys; `tables` replaces or adds tables, keys within tables merge."""
    table: dict[str, Any] = {
        "name": "contract",
        "seed": 11,
        "steps": 2,
        "backbone": {"use": "toy"},
        "prompts": {"file": "prompts.txt", "per_step": 2, "group": 2, "micro_batch": 2},
        "rollout": {"steps": 5, "height": 4, "width": 4},
        "reward": {"brightness": {"use": "toy-brightness"}},
        "algorithm": {"use": "toy-direct"},
        "estimator": {"use": "toy-bptt"},
        "optimizer": {"lr": 0.01},
        "evaluation": {"every": 1, "prompts": "prompts.txt", "count": 1},
        "output": {"checkpoint_every": 1, "keep_every": 1, "trackers": []},
    }
    for key, value in tables.items():
        merged = key in ("prompts", "rollout", "evaluation", "output", "optimizer", "engine")
        table[key] = {**table.get(key, {}), **value} if merged else value
    return table


def write_run_file(
    folder: Path, tables: Mapping[str, Any], prompts: Sequence[str] = PROMPTS
) -> Path:
    """Write `run.toml` and `prompts.txt` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.txt").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(run_table(tables, prompts)), encoding="utf-8")
    return path


def weights_after(path: Path, out: Path, *, resume: bool = False) -> dict[str, Tensor]:
    """Train a run file into `out`; returns the trained weights of its last checkpoint."""
    import headwater
    from headwater import checkpoints

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a run tells its user, an observer's failure too
        headwater.run(path, out=out, resume=resume)
    weights, _ = checkpoints.load(checkpoints.newest(out), "live")
    return dict(weights)
