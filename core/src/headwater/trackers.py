"""Core's observers: JSON lines and TensorBoard. Neither needs the network."""

from __future__ import annotations

import json
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

    @hookimpl
    def start(self, run: Run, folder: Path) -> None:
        """Open the file."""
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")

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

    @hookimpl
    def start(self, run: Run, folder: Path) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    @hookimpl
    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the scalars."""
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
