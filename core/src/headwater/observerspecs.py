"""Hooks of observers. They are told what happened, and change nothing.

Each takes only the arguments it names; nothing it returns is used. What it is given is a copy or
cannot be written to, and the global state that training depends on is put back after every call
(see `isolation`). What it raises is reported once and never stops the run, but for a full disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.markers import hookspec

if TYPE_CHECKING:
    from headwater.composition import Run


@hookspec
def start(run: Run, folder: Path) -> None:
    """The run begins, or goes on: its folder exists and its weights are loaded.

    run: a copy, its plugins without weights. `composition.resolved(run)` is the resolved run file.
    """


@hookspec
def before_step(step: int) -> None:
    """Optimizer step `step` (from 1) is about to begin."""


@hookspec
def after_step(step: int, metrics: Mapping[str, float]) -> None:
    """Optimizer step `step` (from 1) is done, its update applied or skipped."""


@hookspec
def after_evaluation(step: int, metrics: Mapping[str, float], picture: Path | None) -> None:
    """An evaluation after `step` optimizer steps; `picture` is its sample grid."""


@hookspec
def on_error(step: int, error: BaseException) -> None:
    """The run fails after `step` whole optimizer steps; called once, before `finish`.

    What could be saved is saved. error: what the loop raises next. A second Ctrl-C, which leaves
    the step at once, is a KeyboardInterrupt here; the first one ends in order and is no error.
    """


@hookspec
def finish(step: int, reason: str) -> None:
    """The run ended after `step` optimizer steps: `done`, `stopped` or `failed`.

    `summary.json` is in the run folder, unless it failed.
    """
