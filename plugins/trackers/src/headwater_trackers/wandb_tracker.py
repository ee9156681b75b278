"""Weights & Biases. Offline by default: `wandb sync` sends the run whenever you like."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import uuid4

import attrs

from headwater.composition import resolved
from headwater_trackers.tracker import Record, Tracker, plugins_of

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.define(eq=False)
class Wandb(Tracker):
    """Records into the run folder's `wandb/`; the chart's axis is `step`."""

    library: ClassVar[str] = "wandb"

    project: str = "headwater"
    """Project the run belongs to."""
    entity: str = ""
    """User or team; empty for the account's own."""
    group: str = ""
    """Runs that belong together, seeds for instance."""
    name: str = ""
    """Name of the run; empty for that of its folder."""
    tags: tuple[str, ...] = ()
    """Beside the names of backbone, algorithm, estimator and dynamics."""
    notes: str = ""
    """A few words."""
    mode: Literal["offline", "online"] = "offline"
    """`online` needs the network and an account."""

    _run: Any = attrs.field(init=False, default=None)

    def problems(self, run: Run) -> list[str]:
        """Also an account that is not there."""
        found = super().problems(run)
        if found or self.mode == "offline":
            return found
        import wandb

        if wandb.login(prompt=False, verify=False):
            return []
        return ['mode = "online" needs an account; call `wandb login`, or set WANDB_API_KEY']

    def _open(self, run: Run, folder: Path, known: str) -> str:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no word to the makers
        import wandb

        name = known or uuid4().hex[:8]
        self._run = wandb.init(
            project=self.project,
            entity=self.entity or None,
            group=self.group or None,
            name=self.name or folder.name,
            tags=sorted({*self.tags, *plugins_of(run).values()}),
            notes=self.notes or None,
            id=name,
            resume="allow",
            mode=self.mode,
            dir=str(folder),
            reinit="create_new",
            # The terminal is the run's own, and none of its output needs to be kept. What is
            # recorded is on the disk a second later: a killed run loses no more than that.
            settings=wandb.Settings(
                console="off", silent=True, x_transaction_log_flush_interval=1.0
            ),
        )
        self._run.config.update(resolved(run), allow_val_change=True)
        self._run.define_metric("*", step_metric="step")
        return name

    def _record(self, record: Record, row: int) -> None:
        import wandb

        told: dict[str, Any] = {"step": record.step, **record.metrics}
        if record.picture is not None:
            told["samples"] = wandb.Image(str(record.picture), caption=f"step {record.step}")
        self._run.log(told, step=row, commit=True)

    def _conclude(self, step: int, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({"result": summary})

    def _close(self, reason: str) -> None:
        self._run.finish(exit_code=1 if reason == "failed" else 0)
