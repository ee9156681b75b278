"""Embedded prompts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from torch import Tensor


@attrs.frozen(eq=False)
class Encoded:
    """Embedded prompts of B samples, and their negative prompts under classifier-free guidance."""

    given: Mapping[str, Tensor]
    """Name: (B, ...)"""
    negative: Mapping[str, Tensor] | None

    def __len__(self) -> int:
        return len(next(iter(self.given.values())))

    def index(self, indices: Sequence[int]) -> Encoded:
        """Take the rows `indices`, repeats allowed."""
        rows = list(indices)
        negative = self.negative
        return Encoded(
            {name: value[rows] for name, value in self.given.items()},
            None if negative is None else {name: v[rows] for name, v in negative.items()},
        )


def same_shapes(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Whether two sets of embeddings can share one batch."""
    return all(left[name].shape == right[name].shape for name in left)
