"""What a run folder tells beside its own files: prompts, resumptions, and who trains into it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.prompts import read_prompts


def prompts(folder: Path, table: Mapping[str, Any], notes: list[str]) -> tuple[str, ...]:
    """Texts of the evaluation prompts; empty where their list is gone."""
    evaluation = table.get("evaluation")
    found = evaluation if isinstance(evaluation, dict) else {}
    name, count = found.get("prompts", ""), found.get("count", 0)
    if not isinstance(name, str) or not name:
        return ()
    try:
        listed = read_prompts(name, folder)
    except ValueError as error:
        notes.append(f"The evaluation prompts cannot be read: {error}.")
        return ()
    return tuple(p.text for p in listed[: count if type(count) is int and count else None])


def resumed(folder: Path, notes: list[str]) -> list[int] | None:
    """Steps after which the run was resumed, as the headers of TensorBoard's files tell."""
    files = sorted((folder / "tensorboard").glob("events.out.tfevents.*"))
    if not files:
        return None
    found = []
    for path in files:
        try:
            first = _first_step(path)
        except (OSError, ValueError) as error:
            notes.append(f"{path.name} cannot be read: {error}.")
            continue
        if first > 0:
            found.append(first - 1)
    return found


def _first_step(path: Path) -> int:
    """The step from which an event file replaces earlier ones; 0 for that of a new run.

    It stands in the second of the file's headers.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    step = 0
    for event in EventFileLoader(str(path)).Load():
        if not event.file_version:
            break
        step = max(step, int(event.step))
    return step


def held(folder: Path) -> bool:
    """Whether a process on this file system holds the folder, as a run does."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(handle)
    return False
