"""Trackio: a local database that `trackio show` draws."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import attrs

from headwater.composition import resolved
from headwater_trackers.tracker import Record, Tracker, numbers

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.define(eq=False)
class Trackio(Tracker):
    """Records into Trackio's own folder (`TRACKIO_DIR`), where it finds all runs of a project."""

    library: ClassVar[str] = "trackio"

    project: str = "headwater"
    """Project the run belongs to."""
    group: str = ""
    """Runs that belong together, seeds for instance."""
    name: str = ""
    """Name of the run, made unique by four letters; empty for that of its folder."""
    space: str = ""
    """Hugging Face Space to send to, which needs the network; empty for none."""

    _run: Any = attrs.field(init=False, default=None)

    def _open(self, run: Run, folder: Path, known: str) -> str:
        import trackio

        name = known or f"{self.name or folder.name}-{uuid4().hex[:4]}"
        with redirect_stdout(io.StringIO()):  # the terminal is the run's own
            self._run = trackio.init(
                project=self.project,
                name=name,
                group=self.group or None,
                space_id=self.space or None,
                config=resolved(run),
                resume="allow" if known else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        return name

    def _record(self, record: Record, row: int) -> None:
        import trackio

        told: dict[str, Any] = dict(record.metrics)
        if record.picture is not None:
            told["samples"] = trackio.Image(str(record.picture), caption=f"step {record.step}")
        self._run.log(told, step=record.step)

    def _conclude(self, step: int, summary: Mapping[str, Any]) -> None:
        self._run.log(numbers(summary), step=step)

    def _close(self, reason: str) -> None:
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()  # also forgets it, so that no second end is printed at the exit
