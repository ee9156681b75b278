"""Hooks of observers. They are told what happened; nothing they return is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.markers import hookspec

if TYPE_CHECKING:
    from headwater.composition import Run


@hookspec
def start(run: Run, folder: Path) -> None:
    """The run folder exists and the plugins are loaded."""


@hookspec
def after_step(step: int, metrics: Mapping[str, float]) -> None:
    """Optimizer step `step` (from 1) is done, its update applied or skipped."""


@hookspec
def after_evaluation(step: int, metrics: Mapping[str, float], picture: Path | None) -> None:
    """An evaluation after `step` optimizer steps; `picture` is its sample grid."""


@hookspec
def finish(step: int, reason: str) -> None:
    """The run ended after `step` optimizer steps: `done`, `stopped` or `failed`."""
