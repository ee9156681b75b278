"""Gradients over the trained parameters: where they lie, and their inner products by block.

Sums are float64. A block is a parameter's name up to its first number, `transformer_blocks.0`
for instance, or its first part where it holds no number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import attrs
import torch
from torch import Tensor

from headwater.types import at_least_float32

Gradient = Sequence[Tensor]
"""One tensor a parameter, in the order of `Trained`."""


def block_of(name: str) -> str:
    """The block that a parameter belongs to."""
    parts = name.split(".")
    before = list(takewhile(lambda part: not part.isdigit(), parts))
    return parts[0] if len(before) == len(parts) else ".".join(parts[: len(before) + 1])


@attrs.frozen(eq=False)
class Trained:
    """The trained parameters of a backbone."""

    parameters: tuple[Tensor, ...]
    blocks: tuple[str, ...]
    """(K,) names, in the order of the network."""
    owner: tuple[int, ...]
    """Block of each parameter."""

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> Trained:
        """From `backbone.trainable()`."""
        blocks = list(dict.fromkeys(block_of(name) for name in named))
        owner = tuple(blocks.index(block_of(name)) for name in named)
        return cls(tuple(named.values()), tuple(blocks), owner)

    def buffer(self) -> list[Tensor]:
        """Zeros to add gradients to, at least float32."""
        return [torch.zeros_like(at_least_float32(p.detach())) for p in self.parameters]

    def clear(self) -> None:
        """Set every `.grad` to zeros, allocated."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            else:
                p.grad.zero_()

    def move_to(self, total: list[Tensor]) -> None:
        """Add every `.grad` to a buffer and clear it."""
        for sum_, p in zip(total, self.parameters, strict=True):
            if p.grad is not None:
                sum_.add_(p.grad)
        self.clear()

    def grads(self) -> list[Tensor]:
        """What lies in `.grad` now; zeros where a parameter has none."""
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]

    def inner(self, left: Gradient, right: Gradient) -> Tensor:
        """Inner products by block, (K,) float64 on the CPU."""
        pairs = zip(left, right, strict=True)
        return self._by_block([(a.double() * b.double()).sum() for a, b in pairs])

    def distance(self, left: Gradient, right: Gradient) -> Tensor:
        """|left - right|^2 by block, (K,)."""
        pairs = zip(left, right, strict=True)
        return self._by_block([(a.double() - b.double()).square().sum() for a, b in pairs])

    def _by_block(self, values: Sequence[Tensor]) -> Tensor:
        out = torch.zeros(len(self.blocks), dtype=torch.float64)
        return out.index_add_(0, torch.tensor(self.owner), torch.stack(list(values)).cpu())


class Mean:
    """Mean and scatter of gradients that come one by one (Welford): one buffer."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.count = 0
        self.mean = trained.buffer()
        self.scatter = torch.zeros(len(trained.blocks), dtype=torch.float64)
        """(K,) sum of |gradient - mean|^2 so far."""

    def add(self, gradient: Gradient) -> None:
        """Take one more."""
        self.count += 1
        before = self.trained.distance(gradient, self.mean)
        self.scatter += before * (self.count - 1) / self.count
        for mean, value in zip(self.mean, gradient, strict=True):
            mean.add_(value - mean, alpha=1 / self.count)
