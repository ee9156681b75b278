"""Which steps, and their basis rows: the pure part of the classical estimators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def tail_length(steps: int, fraction: float) -> int:
    """round(fraction * steps), at least one."""
    return max(1, round(fraction * steps))


def draw_tail(steps: int, fraction: float, generator: Generator) -> int:
    """A step uniform over the last `tail_length`."""
    count = tail_length(steps, fraction)
    return steps - count + int(torch.randint(count, (), generator=generator))


def spaced(last: int, k: int, generator: Generator) -> list[int]:
    """`k` steps of 0 .. last with stride (last + 1) // k, the first uniform over what is left."""
    stride = (last + 1) // k
    left = last + 1 - (k - 1) * stride
    first = int(torch.randint(left, (), generator=generator))
    return [first + i * stride for i in range(k)]


def unit_rows(steps: Sequence[int], active: Sequence[int], mean_at: int | None) -> Tensor:
    """(A, S) unit rows; the row of `mean_at`, where it is active, has ones from there on.

    The posterior mean at step e is x_e - sigma_e v_e. Since sigma_e is the sum of the step sizes
    from e on, ones in the row of e carry exactly its gradient.
    """
    basis = torch.zeros(len(active), len(steps), dtype=torch.float64)
    for row, a in enumerate(active):
        column = list(steps).index(a)
        basis[row, column : None if a == mean_at else column + 1] = 1
    return basis
