"""What measurements leave behind: fitted bases, and cosines by which groups are routed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

Steps = tuple[int, ...]


@attrs.define(eq=False)
class Results:
    """What some measurements gave."""

    bases: dict[Steps, Tensor] = attrs.field(factory=dict)
    """A group's steps: its fitted basis (A, S)."""
    cosines: dict[int, float] = attrs.field(factory=dict)
    """A group's position: cosine of its gradient to the exact one."""

    def update(self, newer: Results) -> None:
        """Take the newer results over."""
        self.bases.update(newer.bases)
        self.cosines.update(newer.cosines)

    def state(self) -> dict[str, Any]:
        """As JSON takes it; numbers survive it bit for bit."""
        return {
            "bases": [[list(steps), basis.tolist()] for steps, basis in self.bases.items()],
            "cosines": [[position, cosine] for position, cosine in self.cosines.items()],
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Results:
        """From `state`."""
        bases = {
            tuple(steps): torch.tensor(rows, dtype=torch.float64) for steps, rows in state["bases"]
        }
        return cls(bases, {int(position): float(cosine) for position, cosine in state["cosines"]})


@attrs.define(eq=False)
class Memory:
    """Results are in force from the next policy version on, never in the update they are from.

    A measurement is due at the versions that `every` divides. That is a function of the update
    alone, so a plan, which applies no update, foresees the same ones. The first (version, seed)
    to arrive claims it: seeds differ by optimizer step and part, so other parts do not repeat it.
    A claim is open until the engine reaches its first group: a plan, which never does, leaves it
    open for the run, and the second micro-batch of a run finds it closed.
    """

    now: Results = attrs.field(factory=Results)
    """In force."""
    new: Results = attrs.field(factory=Results)
    """Of `version`, in force after it."""
    version: int = -1
    """Policy version of the last measurement."""
    _claim: tuple[int, int] = (-1, 0)

    def arrive(self, version: int) -> None:
        """Put what an earlier policy version measured in force."""
        if version != self.version:
            self.now.update(self.new)
            self.new = Results()

    def due(self, version: int, seed: int, every: int) -> bool:
        """Whether this micro-batch is to be measured."""
        if version % every or version == self.version:
            return False
        if self._claim[0] != version:
            self._claim = (version, seed)
        return self._claim == (version, seed)

    def close(self, version: int) -> None:
        """The measurement of this version has begun."""
        self.version = version

    def state(self) -> dict[str, Any]:
        """All of it but an open claim, as JSON takes it."""
        return {"version": self.version, "now": self.now.state(), "new": self.new.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.version = int(state["version"])
        self.now, self.new = Results.of(state["now"]), Results.of(state["new"])
        self._claim = (-1, 0)
