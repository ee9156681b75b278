"""What a run has come to: its steps and their work, its evaluations, the best of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import attrs

from headwater import checkpoints
from headwater.evaluation import Evaluated, pack, unpack
from headwater.hacking import Watch
from headwater.resume import Point
from headwater.state import Files
from headwater.statistics import estimate


@attrs.define(eq=False)
class Standing:
    """Counted and measured so far, the time before a resumption included."""

    watch: Watch
    done: int = 0
    """Optimizer steps."""
    forwards: int = 0
    backwards: int = 0
    first: Evaluated | None = None
    """The model before training."""
    last: Evaluated | None = None
    evaluated_at: int = -1
    """Optimizer steps at the last evaluation; -1 without one."""
    best: float = -math.inf
    best_name: str = ""
    """Checkpoint of the best evaluation after training began; empty without one."""
    began: float = attrs.field(factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began

    def evaluated(self, found: Evaluated) -> dict[str, float]:
        """Take in an evaluation of the weights as they are. Returns: what it means, as metrics."""
        watched = self.watch.after(self.done, found.total, found.scores)
        changes = found.changes(self.first) if self.first is not None else {}
        self.first, self.last = self.first or found, found
        self.evaluated_at = self.done
        return {**found.metrics(), **changes, **watched}

    def is_best(self, name: str, found: Evaluated, key: str) -> bool:
        """Whether it is the best so far by reward `key`, or by the total where that is empty."""
        value = estimate(found.scores[key] if key else found.total).mean
        better = value > self.best and self.done > 0
        if better:
            self.best, self.best_name = value, name
        return better

    def capture(self) -> tuple[dict[str, Any], Files]:
        """For a checkpoint: JSON, and the tensors of two files."""
        record = {
            "best": self.best_name,
            "best_value": self.best if self.best_name else None,
            "evaluated_at": self.evaluated_at,
            "hacking": self.watch.state(),
            "seconds": self.seconds,
            "forwards": self.forwards,
            "backwards": self.backwards,
        }
        both = (("first", self.first), ("last", self.last))
        return record, {name: {} if found is None else pack(found) for name, found in both}

    def restore(self, point: Point, say: Callable[[str], None]) -> None:
        """Go on from a checkpoint; evaluations that cannot be compared any more are left out."""
        found = point.state
        self.best, self.best_name = -math.inf, ""
        self.done = int(found["step"])
        self.forwards, self.backwards = int(found["forwards"]), int(found["backwards"])
        self.began = time.monotonic() - float(found["seconds"])
        judge = "evaluation.keep_best" not in point.changed
        comparable = judge and not point.measured_otherwise
        self.watch.restore(found.get("hacking"), comparable=comparable)
        if point.measured_otherwise:
            return
        self.evaluated_at = int(found["evaluated_at"])
        for name in ("first", "last"):
            tensors = checkpoints.read_tensors(point.path, name)
            setattr(self, name, unpack(tensors) if tensors else None)
        if judge:
            self._find_best(point, say)

    def _find_best(self, point: Point, say: Callable[[str], None]) -> None:
        name = str(point.state["best"])
        if name and checkpoints.damage(point.path.with_name(name)):
            say(f"the best checkpoint, {name}, is lost; the next best is kept")
        elif name:
            self.best, self.best_name = float(point.state["best_value"]), name
