"""A run folder as it is at this moment: whole, still growing, stopped, or partly lost.

Only `run.toml` must be there. Whatever else is missing or damaged is named in `notes`, and the rest
is reported. Nothing in the folder is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import tomli

from headwater import checkpoints
from headwater.errors import DamagedError, InputError
from headwater.evaluation import Evaluated, unpack
from headwater_report.surroundings import held, prompts, resumed

Metrics = Mapping[int, Mapping[str, float]]
"""By optimizer step; NaN where null was written."""
LARGEST = 1e100
"""Of a metric; beyond it nothing can be squared, and nothing is meant."""
LARGEST_STEP = 10**12
LARGEST_SUMMARY = 64 * 2**20
"""Bytes of a summary that are read at most."""


@attrs.frozen(eq=False)
class Pair:
    """The first and the newest evaluation that a checkpoint holds."""

    step: int
    """Of the newest evaluation."""
    first: Evaluated
    last: Evaluated


@attrs.frozen(eq=False)
class Record:
    """What a run folder tells."""

    folder: Path
    text: str
    """`run.toml`."""
    table: Mapping[str, Any]
    steps: Metrics
    evaluations: Metrics
    """Metrics of evaluations, `evaluation/` left out: `KEY`, `change/KEY`, `hacking/...`."""
    written: float
    """When `metrics.jsonl` was last written, seconds since the epoch; 0 without one."""
    summary: Mapping[str, Any]
    """Empty where there is none, or where the run went on after it."""
    pair: Pair | None
    checkpoint: int
    """Step of the newest whole checkpoint; -1 for none."""
    versions: Mapping[str, str]
    prompts: Sequence[str]
    """Of the evaluation, as far as they can be read."""
    resumed: Sequence[int] | None
    """Steps after which it was resumed; None where nothing recorded it."""
    held: bool
    """Whether a process is training into the folder."""
    notes: Sequence[str]
    title: str = ""
    """What a report calls it, where other runs have its name too."""

    @property
    def label(self) -> str:
        """What a report calls it."""
        return self.title or self.name

    @property
    def name(self) -> str:
        """Of the run file."""
        return str(self.table.get("name") or self.folder.name)

    @property
    def planned(self) -> int:
        """Optimizer steps asked for; 0 where the file does not say."""
        steps = self.table.get("steps")
        return steps if isinstance(steps, int) else 0

    @property
    def done(self) -> int:
        """Optimizer steps done."""
        return max([0, *self.steps, self.checkpoint, int(self.summary.get("steps", 0))])

    def keys(self, *path: str) -> list[str]:
        """Keys of an inner table: `keys("evaluation", "reward")`."""
        inner: Any = self.table
        for key in path:
            inner = inner.get(key, {}) if isinstance(inner, Mapping) else {}
        return list(inner) if isinstance(inner, Mapping) else []

    @property
    def trained(self) -> list[str]:
        """Keys of the trained rewards."""
        return self.keys("reward")

    @property
    def held_out(self) -> list[str]:
        """Keys of the rewards that are only measured."""
        return self.keys("evaluation", "reward")


def read_run(folder: Path) -> Record:
    """Read a run folder. InputError where it is none."""
    text, table = _run_file(folder)
    notes: list[str] = []
    steps, evaluations, written = _metrics(folder, table, notes)
    pair, checkpoint, state = _checkpoint(folder, notes)
    summary = _summary(folder, max([0, *steps, checkpoint]), notes)
    identity = state.get("identity")
    known = identity.get("versions") if isinstance(identity, dict) else None
    versions = summary.get("versions") or known or {}
    return Record(
        folder=folder,
        text=text,
        table=table,
        steps=steps,
        evaluations=evaluations,
        written=written,
        summary=summary,
        pair=pair,
        checkpoint=checkpoint,
        versions={str(k): str(v) for k, v in versions.items()},
        prompts=prompts(folder, table, notes),
        resumed=resumed(folder, notes),
        held=held(folder),
        notes=notes,
    )


def _run_file(folder: Path) -> tuple[str, dict[str, Any]]:
    path = folder / "run.toml"
    if not folder.is_dir():
        what = "it is a file; name the run's folder" if folder.exists() else "no such folder"
        raise InputError(str(folder), [what])
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomli.loads(text)
    except FileNotFoundError:
        raise InputError(str(folder), ["it holds no run (no run.toml)"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), [f"cannot be read: {error}"]) from None
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise InputError(str(path), [f"not valid TOML: {error}"]) from None


def _metrics(
    folder: Path, table: Mapping[str, Any], notes: list[str]
) -> tuple[dict[int, dict[str, float]], dict[int, dict[str, float]], float]:
    """Metrics of steps and of evaluations, and when they were written.

    Of a step that was written twice the later line counts. A last line without an end is one that
    is being written, or was when the run was killed; the latter gets a note.
    """
    path = folder / "metrics.jsonl"
    try:
        data, written = path.read_bytes(), path.stat().st_mtime
    except FileNotFoundError:
        output = table.get("output")
        trackers = output.get("trackers", ["jsonl"]) if isinstance(output, dict) else ["jsonl"]
        asked = "jsonl" in trackers
        why = "nothing was written yet" if asked else "the run's trackers do not include jsonl"
        notes.append(f"There is no metrics.jsonl: {why}, so there are no curves.")
        return {}, {}, 0.0
    except OSError as error:
        notes.append(f"metrics.jsonl cannot be read: {error.strerror}.")
        return {}, {}, 0.0
    steps: dict[int, dict[str, float]] = {}
    evaluations: dict[int, dict[str, float]] = {}
    bad = 0
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        row = _row(line)
        if row is None:
            bad += 1
            continue
        step, values = row
        if any(key.startswith("evaluation/") for key in values):
            evaluations[step] = {k.removeprefix("evaluation/"): v for k, v in values.items()}
        else:
            steps[step] = values
    if data and not data.endswith(b"\n") and not held(folder):
        notes.append("The last line of metrics.jsonl is cut off; left out.")
    if bad:
        notes.append(f"{bad} line{'s' * (bad > 1)} of metrics.jsonl cannot be read; left out.")
    return dict(sorted(steps.items())), dict(sorted(evaluations.items())), written


def _row(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Step and numbers of a line; None where it is no line of metrics."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    if type(step) is not int or not 0 <= step <= LARGEST_STEP:
        return None
    values = {key: _number(value) for key, value in record.items() if key != "step"}
    return step, {key: value for key, value in values.items() if value is not None}


def _number(value: Any) -> float | None:
    """NaN for null and for what is beyond `LARGEST`; None for what is no number."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST else math.nan


def _summary(folder: Path, done: int, notes: list[str]) -> dict[str, Any]:
    """`summary.json`, if it tells of all steps that are done."""
    path = folder / "summary.json"
    try:
        if path.stat().st_size > LARGEST_SUMMARY:
            raise ValueError("it is too large")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or type(found.get("steps")) is not int:
            raise ValueError("it does not say how many steps were done")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"summary.json cannot be read and is left out: {error}.")
        return {}
    if found["steps"] < done:
        notes.append(f"summary.json is of a stop at step {found['steps']}; the run went on since.")
        return {}
    return found


def _checkpoint(folder: Path, notes: list[str]) -> tuple[Pair | None, int, Mapping[str, Any]]:
    """Evaluations, step and state of the newest checkpoint that is whole."""
    files = ("first.safetensors", "last.safetensors", checkpoints.STATE)
    damaged: list[str] = []
    for path in checkpoints.whole(folder / "checkpoints", damaged.append, files):
        try:
            state = checkpoints.read_state(path)
            tensors = [checkpoints.read_tensors(path, stem) for stem in ("first", "last")]
            at = state.get("evaluated_at")
            pair = None
            if all(tensors) and type(at) is int and at > 0:
                pair = Pair(at, *map(unpack, tensors))
        except (DamagedError, KeyError, RuntimeError) as error:
            damaged.append(f"{path}: {error}")  # or removed by the run in this moment
            continue
        notes += [" ".join(text.split()) for text in damaged]
        return pair, checkpoints.step_of(path), state
    notes += [" ".join(text.split()) for text in damaged]
    return None, -1, {}
