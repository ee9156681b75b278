"""An estimator whose draws depend on everything it did before, and on every global generator."""

import random
from typing import ClassVar

import attrs
import numpy as np
import torch

from headwater import hookimpl
from headwater.types import Group, Surrogate

ENTRY_POINTS = {"estimator toy-wandering": "Wandering"}


@attrs.define(eq=False)
class Wandering:
    """One step, chosen by a walk."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    trace: torch.Tensor = attrs.field(init=False, factory=lambda: torch.zeros(3).double())
    visits: dict = attrs.field(init=False, factory=dict)

    def state(self):
        """A tensor, and what JSON takes."""
        return {"trace": self.trace.clone(), "visits": dict(self.visits)}

    def restore(self, state):
        """Go on."""
        self.trace, self.visits = state["trace"], dict(state["visits"])

    def measured(self):
        """Where it is."""
        return {f"trace_{i}": float(value) for i, value in enumerate(self.trace)}

    @hookimpl
    def build_surrogate(self, rollout):
        """The walk's length decides, and how often the step was visited."""
        drawn = [torch.rand(()).item(), np.random.rand(), random.gauss(0, 1)]
        self.trace = 0.9 * self.trace + torch.tensor(drawn).double()
        step = int(self.trace.abs().sum() * 1000) % rollout.steps
        self.visits[str(step)] = self.visits.get(str(step), 0) + 1
        weight = torch.full((1, 1), 1.0 / self.visits[str(step)])
        return Surrogate(
            (Group((step,), (step,), weight),), rollout.state(rollout.steps), None, rollout
        )
