"""The end of an optimizer step: the gradients of all processes become one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from headwater import moments, processes, sharding, zero
from headwater.optimization import make_optimizer
from headwater.tables import Optimizer


class Update:
    """AdamW over weights that every process holds, whole or as its shard.

    Within a step: `begin`, backwards that add to the gradients, `reduce`, `norm`, and `apply`
    unless the update is skipped.
    """

    def __init__(self, parameters: Mapping[str, Parameter], table: Optimizer) -> None:
        self.parameters, self.table = parameters, table
        self.optimizer = make_optimizer(parameters, table)

    def begin(self) -> None:
        """Zero the gradients."""
        self.optimizer.zero_grad(set_to_none=False)

    def reduce(self) -> None:
        """Average the gradients over the processes; sharded ones are already."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        processes.average_([grad for grad in grads if not sharding.is_shard(grad)])

    def norm(self) -> float:
        """Euclidean norm of the gradient of all weights; after `reduce`."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        return float(sharding.whole({"": torch.nn.utils.get_total_norm(grads)})[""])

    def apply(self, norm: float, rate: float) -> None:
        """Clip a gradient of this norm to `max_grad_norm`, and step."""
        limit = self.table.max_grad_norm
        torch.nn.utils.clip_grads_with_norm_(
            list(self.parameters.values()), limit, torch.tensor(norm)
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def moments(self) -> dict[str, Tensor]:
        """`KEY/PARAMETER`: the optimizer's state, whole. Every process must call it."""
        return moments.pack(self.optimizer, self.parameters)

    def restore(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from `moments.unpack`; the weights are restored before."""
        self.optimizer.state.clear()
        for name, found in entries.items():
            self.optimizer.state[self.parameters[name]] = dict(found)


class ZeroUpdate(Update):
    """The same, each process with a part of the moments: DeepSpeed's ZeRO."""

    def __init__(self, parameters: Mapping[str, Parameter], table: Optimizer) -> None:
        super().__init__(parameters, table)
        self.zero = zero.Zero(parameters, self.optimizer)

    def begin(self) -> None:
        """Open the block whose backwards add up locally."""
        self.zero.begin()

    def reduce(self) -> None:
        """Every process gets its part of the mean gradient."""
        self.zero.reduce()

    def norm(self) -> float:
        """As of whole gradients."""
        return self.zero.norm()

    def apply(self, norm: float, rate: float) -> None:
        """Clip as torch does, step on the own part, gather the weights."""
        self.zero.apply(min(1.0, self.table.max_grad_norm / (norm + 1e-6)), rate)

    def moments(self) -> dict[str, Tensor]:
        """The files of one process; gathered."""
        return self.zero.moments()

    def restore(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Each process takes its part."""
        self.zero.restore(entries)


def open_update(parameters: Mapping[str, Parameter], table: Optimizer) -> Update:
    """As the launcher asks. InputError where that does not go with the run."""
    return (ZeroUpdate if zero.asked_for() else Update)(parameters, table)
