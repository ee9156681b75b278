"""Metrics gathered over the calls of one optimizer step."""

from __future__ import annotations

import attrs
from torch import Tensor


@attrs.define(eq=False)
class Record:
    """Sums, means and maxima by name, until they are drained."""

    sums: dict[str, float] = attrs.field(factory=dict)
    means: dict[str, tuple[float, int]] = attrs.field(factory=dict)
    maxima: dict[str, float] = attrs.field(factory=dict)
    warned: bool = False

    def add(self, name: str, value: Tensor) -> None:
        """Add a number to a sum."""
        self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def average(self, name: str, values: Tensor) -> None:
        """Let (B,) values enter a mean."""
        total, count = self.means.get(name, (0.0, 0))
        self.means[name] = (total + float(values.sum()), count + values.numel())

    def largest(self, name: str, values: Tensor) -> None:
        """Let (B,) values enter a maximum."""
        self.maxima[name] = max(self.maxima.get(name, 0.0), float(values.max()))

    def drain(self) -> dict[str, float]:
        """All of it, by name; the record is empty afterwards."""
        means = {name: total / count for name, (total, count) in self.means.items()}
        found = {**self.sums, **means, **self.maxima}
        self.sums, self.means, self.maxima = {}, {}, {}
        return found
