"""Core's observers: JSON lines and TensorBoard. Neither needs the network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs

from headwater.markers import hookimpl
from headwater.statistics import without_nan

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.define(eq=False)
class JsonLines:
    """One JSON object a line in `metrics.jsonl`: `step`, then the metrics."""

    _file: IO[str] | None = attrs.field(init=False, default=None)
    _kept: int | None = attrs.field(init=False, default=None)
    """Bytes of the file that a resumed run keeps; all of them without one."""

    @hookimpl
    def start(self, run: Run, folder: Path) -> None:
        """Open the file. Lines of steps that a resumed run does again are cut off."""
        path = folder / "metrics.jsonl"
        self._file = path.open("a", encoding="utf-8")
        if self._kept is not None:
            os.truncate(path, min(self._kept, path.stat().st_size))

    def state(self) -> dict[str, int]:
        """Bytes so far; they are on the disk."""
        if self._file is None:
            return {}
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": os.fstat(self._file.fileno()).st_size}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; `start` does the work."""
        self._kept = int(state["bytes"])

    @hookimpl
    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line."""
        self._write({"step": step, **metrics})

    @hookimpl
    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        """Write a line."""
        self._write({"step": step, **metrics})

    @hookimpl
    def finish(self, step: int, reason: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, record: Mapping[str, float]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(without_nan(record)) + "\n")
            self._file.flush()


@attrs.define(eq=False)
class TensorBoard:
    """Scalars and sample grids for TensorBoard, in the run folder's `tensorboard/`."""

    _writer: Any = attrs.field(init=False, default=None)
    _step: int = attrs.field(init=False, default=0)
    _purge: int | None = attrs.field(init=False, default=None)
    """First step whose earlier events TensorBoard drops."""

    @hookimpl
    def start(self, run: Run, folder: Path) -> None:
        """Open a new event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=self._purge)

    def state(self) -> dict[str, int]:
        """The last step written."""
        return {"step": self._step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._step = int(state["step"])
        self._purge = self._step + 1

    @hookimpl
    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the scalars."""
        self._step = step
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    @hookimpl
    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        """Write the scalars and the picture."""
        self.after_step(step, metrics)
        if picture is not None:
            import numpy as np
            from PIL import Image

            pixels = np.asarray(Image.open(picture).convert("RGB"))
            self._writer.add_image("samples", pixels, step, dataformats="HWC")

    @hookimpl
    def finish(self, step: int, reason: str) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
