"""What the three trackers share: one run at the tracker for one run folder, each record once."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from headwater import hookimpl
from headwater_trackers.ledger import Ledger

if TYPE_CHECKING:
    from headwater.composition import Run

PAUSE = 60.0
"""Seconds after a failure until the tracker is asked again; records wait for it."""
WAITING = 10_000
"""Records that wait at most; then the oldest are lost."""


@attrs.frozen(eq=False)
class Record:
    """What is told of an optimizer step or of an evaluation."""

    kind: str
    """`step` or `evaluation`."""
    step: int
    metrics: Mapping[str, float]
    picture: Path | None
    when: float
    """Seconds since the epoch."""


@attrs.define(eq=False)
class Tracker(ABC):
    """Hooks in terms of five calls of the tracker's library."""

    library: ClassVar[str]
    """The module it needs, and its entry-point name."""

    _ledger: Ledger | None = attrs.field(init=False, default=None)
    _known: Mapping[str, Any] | None = attrs.field(init=False, default=None)
    """What the checkpoint of a resumed run knew of the ledger."""
    _folder: Path = attrs.field(init=False, factory=Path)
    _waiting: deque[Record] = attrs.field(init=False, factory=lambda: deque(maxlen=WAITING))
    """What the tracker has not taken yet."""
    _silent_until: float = attrs.field(init=False, default=0.0)

    @abstractmethod
    def _open(self, run: Run, folder: Path, known: str) -> str:
        """Begin, or go on with the run `known`. Returns: the run's identifier at the tracker."""

    @abstractmethod
    def _record(self, record: Record, row: int) -> None:
        """Record metrics and the sample grid. row: records before this one."""

    @abstractmethod
    def _conclude(self, step: int, summary: Mapping[str, Any]) -> None:
        """Record what `summary.json` holds."""

    @abstractmethod
    def _close(self, reason: str) -> None:
        """End the run: `done`, `stopped` or `failed`."""

    def problems(self, run: Run) -> list[str]:
        """A library that is not there, before any weight loads."""
        try:
            found = find_spec(self.library)
        except ValueError:
            found = None
        # A folder `wandb` beside the run file is a namespace package, and no library.
        if found is not None and found.origin is not None:
            return []
        return [
            f'{self.library} is not installed; pip install "headwater-trackers[{self.library}]", '
            f"or take {self.library!r} out of [output] trackers"
        ]

    @hookimpl
    def start(self, run: Run, folder: Path) -> None:
        """Open the tracker, for the run that a resumed folder already has there."""
        self._folder = folder
        path = folder / "trackers" / f"{self.library}.json"
        known = None if self._known is None else Ledger.go_on(path, self._known)
        name = self._open(run, folder.resolve(), "" if known is None else known.run)
        self._ledger = Ledger(path, name) if known is None else attrs.evolve(known, run=name)
        self._ledger.write()

    def state(self) -> dict[str, Any]:
        """The run at the tracker, and how far it is recorded."""
        return self._ledger.known() if self._ledger is not None else dict(self._known or {})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; `start` does the work."""
        self._known = dict(state) or None

    @hookimpl
    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step, unless it was before the run was resumed."""
        self._once("step", step, metrics, None)

    @hookimpl
    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        """Record an evaluation and its sample grid, likewise."""
        self._once("evaluation", step, metrics, picture)

    @hookimpl
    def finish(self, step: int, reason: str) -> None:
        """Record the summary, and close."""
        if self._ledger is None:
            return
        try:
            self._send()
            if reason != "failed":
                text = (self._folder / "summary.json").read_text(encoding="utf-8")
                self._conclude(step, json.loads(text))
        finally:
            self._close(reason)

    def _once(
        self, kind: str, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        assert self._ledger is not None
        if step <= getattr(self._ledger, kind):
            return
        self._waiting.append(Record(kind, step, metrics, picture, time.time()))
        if time.monotonic() >= self._silent_until:
            self._send()

    def _send(self) -> None:
        """Record what waits. After a failure the run is not held up again for a while."""
        assert self._ledger is not None
        try:
            while self._waiting:
                record = self._waiting[0]
                self._record(record, self._ledger.rows)
                self._ledger.count(record.kind, record.step)
                self._waiting.popleft()
        except Exception:
            self._silent_until = time.monotonic() + PAUSE
            raise


def flat(table: Mapping[str, Any], joint: str, start: str = "") -> Iterator[tuple[str, Any]]:
    """Names joined by `joint`, and the values of a nested table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, joint, f"{start}{key}{joint}")
        else:
            yield f"{start}{key}", value


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a `summary.json`, by their path: `summary/reward/difference/mean`."""
    return {
        f"summary/{name}": float(value)
        for name, value in flat(summary, "/")
        if isinstance(value, (int, float))
    }


def plugins_of(run: Run) -> dict[str, str]:
    """Kind: the plugin's name, of those a run has one of."""
    kinds = ("backbone", "algorithm", "estimator", "dynamics")
    return {kind: getattr(run, kind).entry.name for kind in kinds}
