"""What a tracker has recorded of a run, on the disk, so that nothing is recorded twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs


@attrs.define(eq=False)
class Ledger:
    """Written after every record. A checkpoint may be older, and a killed run may have no newer."""

    path: Path
    run: str
    """The run's identifier at the tracker."""
    step: int = -1
    """The last optimizer step recorded."""
    evaluation: int = -1
    """Optimizer steps at the last evaluation recorded."""
    rows: int = 0
    """Records so far."""

    @classmethod
    def go_on(cls, path: Path, known: Mapping[str, Any]) -> Ledger:
        """From what a checkpoint knew of it, and what was recorded after that checkpoint."""
        ledger = cls(path, **known)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ledger  # removed or damaged: the checkpoint's word holds
        if isinstance(found, dict) and found.get("run") == ledger.run:
            for name in ("step", "evaluation", "rows"):
                setattr(ledger, name, max(getattr(ledger, name), int(found[name])))
        return ledger

    def known(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {k: v for k, v in attrs.asdict(self).items() if k != "path"}

    def count(self, kind: str, step: int) -> None:
        """One more record, of a step or an evaluation."""
        setattr(self, kind, step)
        self.rows += 1
        self.write()

    def write(self) -> None:
        """Whole or not at all."""
        self.path.parent.mkdir(exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.known()), encoding="utf-8")
        partial.replace(self.path)
