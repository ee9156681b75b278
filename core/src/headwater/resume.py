"""Going on from a checkpoint: which one, and whether the run file still is that run's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import attrs

from headwater import checkpoints
from headwater.composition import Run, resolved
from headwater.errors import DamagedError, InputError
from headwater.run_folder import write_run_file
from headwater.summary import versions
from headwater.types import Prompt

MAY_CHANGE = ("name", "steps", "evaluation", "output", "guard", "observer")
"""Keys and tables of the run file that a resumed run may have otherwise."""
NOT_MEASURED = tuple(
    f"evaluation.{key}" for key in ("every", "keep_best", "batch", "patience", "on_hacking")
)
"""Keys of [evaluation] that change nothing of what an evaluation gives."""
MISFITS = (DamagedError, KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading a file raises that is whole but no checkpoint of this run."""


@attrs.frozen(eq=False)
class Identity:
    """What a run is: its resolved run file, its prompts, the versions it uses."""

    table: Mapping[str, Any]
    """The resolved run file, as JSON takes it."""
    prompts: str
    """Digest of the prompts; where their file lies does not matter."""
    evaluation_prompts: str
    versions: Mapping[str, str]


@attrs.frozen(eq=False)
class Point:
    """A whole checkpoint that the run may go on from."""

    path: Path
    state: Mapping[str, Any]
    changed: Mapping[str, str]
    """Key of the run file: what changed, of those that may."""
    notes: Sequence[str]
    """What a person should know."""

    @property
    def measured_otherwise(self) -> bool:
        """Whether earlier evaluations cannot be compared with later ones."""
        return any(
            (key.startswith("evaluation") and key not in NOT_MEASURED) or key == "output.images"
            for key in self.changed
        )


def identity(run: Run) -> Identity:
    """Of a composed run."""
    return Identity(
        table=json.loads(json.dumps(resolved(run))),
        prompts=_digest(run.prompts),
        evaluation_prompts=_digest(run.evaluation_prompts),
        versions=versions(run),
    )


@attrs.frozen(eq=False)
class Candidates:
    """The checkpoints of a run folder, newest first. Damaged ones are named and skipped."""

    run: Run
    folder: Path
    say: Callable[[str], None]
    damaged: list[str] = attrs.field(factory=list)
    """What was said of those that were skipped."""

    def skip(self, text: str) -> None:
        """Name a damaged one."""
        self.damaged.append(text)
        self.say(text)

    def misfit(self, path: Path, error: Exception) -> None:
        """Name one whose content is not what a checkpoint of this run holds."""
        notes = "; ".join(["", *getattr(error, "__notes__", [])])
        self.skip(f"{path} is damaged and skipped: {type(error).__name__}: {error}{notes}")

    def open(self) -> Iterator[Point]:
        """All points, the first of them looked at already: call it before any weight loads.

        Then the folder is made ready. InputError also where it cannot be written.
        """
        rest = iter(self)
        first = next(rest)
        try:
            checkpoints.sweep(self.folder / "checkpoints")
            write_run_file(self.run, self.folder)
        except OSError as error:
            raise InputError(str(self.folder), [f"it cannot be written: {error}"]) from None
        return chain([first], rest)

    def __iter__(self) -> Iterator[Point]:
        """InputError where the run file is another run's, or no whole checkpoint is left."""
        folder = self.folder / "checkpoints"
        if not checkpoints.found(folder):
            problem = "it holds no checkpoint to resume from; start anew in another folder"
            raise InputError(str(self.folder), [problem])
        now = identity(self.run)
        for path in checkpoints.whole(folder, self.skip):
            try:
                state = checkpoints.read_state(path)
                before = Identity(**state["identity"])
                changed, refused = compare(before, now, int(state["step"]))
            except MISFITS as error:
                self.misfit(path, error)
                continue
            if refused:
                refused[-1] += f"\n  may change: {_may_change()}"
                raise InputError(f"{self.run.file.path} is not the run of {path}", refused)
            yield Point(path, state, changed, _notes(before.versions, now.versions))
        raise InputError(str(self.folder), ["no whole checkpoint is left", *self.damaged])


def compare(before: Identity, now: Identity, done: int) -> tuple[dict[str, str], list[str]]:
    """Run files key by key. Returns: what changed and may, and what changed and may not."""
    old, new = _flat(before.table), _flat(now.table)
    changed: dict[str, str] = {}
    refused: list[str] = []
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key) or key in ("prompts.file", "evaluation.prompts"):
            continue  # a prompt list is compared by what it holds
        said = f"{key}: {_shown(old, key)} in the checkpoint, {_shown(new, key)} now"
        if key == "steps" and new.get("optimizer.schedule") == "cosine":
            refused.append(f"{said}; a cosine schedule depends on it")
        elif key == "steps" and new["steps"] < done:
            refused.append(f"{said}, and {done} steps are done")
        elif key.split(".")[0] in MAY_CHANGE:
            changed[key] = said
        else:
            refused.append(said)
    if before.prompts != now.prompts:
        refused.append(f"prompts.file: {new['prompts.file']!r} holds other prompts than before")
    if before.evaluation_prompts != now.evaluation_prompts:
        changed["evaluation.prompts"] = "evaluation.prompts: other prompts"
    return changed, refused


def _notes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Versions that differ from those the checkpoint was written with."""
    return [
        f"{name} {before.get(name, '(absent)')} wrote the checkpoint, "
        f"{now.get(name, '(absent)')} goes on with it; results may differ"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _may_change() -> str:
    tables = ", ".join(f"[{name}]" for name in MAY_CHANGE if name not in ("name", "steps"))
    return f"name, steps (not under a cosine schedule), {tables}"


def _flat(table: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Dotted key: value."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, dict) and value
        out |= _flat(value, f"{start}{key}.") if inner else {f"{start}{key}": value}
    return out


def _shown(table: Mapping[str, Any], key: str) -> str:
    return repr(table[key]) if key in table else "absent"


def _digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of every prompt with what came with it."""
    rows = [[p.text, p.negative, list(p.images), p.metadata] for p in prompts]
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
