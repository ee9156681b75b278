"""Each reward's share of the advantage: which of several rewards a step follows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from headwater_grpo.advantages import (
    Floor,
    Scale,
    counted_rows,
    deviation,
    group_advantages,
    group_index,
    over,
    weighted_sum,
)


def parts_of_sum(
    values: Mapping[str, Tensor],
    weights: Mapping[str, float],
    groups: Sequence[Hashable] | Tensor,
    scale: Scale = "group",
    *,
    unbiased: bool = False,
    epsilon: float = 1e-4,
    floor: Floor = "add",
    trimmed: float = 0.0,
) -> dict[str, Tensor]:
    """KEY: (B,) w_k (r_k - its mean over the group), over the deviation of the weighted sum.

    They add up to `group_advantages` of the weighted sum. Arguments as there.
    """
    total = weighted_sum(values, weights).double()
    index = group_index(groups).to(total.device)
    spread = torch.ones_like(total)
    centred = {key: weights[key] * value.double() for key, value in values.items()}
    for number in range(int(index.max()) + 1):
        rows = (index == number).nonzero().flatten()
        counted = rows[counted_rows(total[rows], trimmed)]
        for part in centred.values():
            part[rows] -= part[counted].mean()
        if scale == "group":
            spread[rows] = deviation(total[counted], unbiased=unbiased)
    if scale == "none":
        return centred
    if scale == "global":
        spread = torch.full_like(total, float(deviation(total, unbiased=unbiased)))
    return {key: over(part, spread, epsilon, floor) for key, part in centred.items()}


def parts_of_each(
    values: Mapping[str, Tensor],
    weights: Mapping[str, float],
    groups: Sequence[Hashable] | Tensor,
    scale: Scale = "group",
    *,
    unbiased: bool = False,
    epsilon: float = 1e-4,
    floor: Floor = "add",
    trimmed: float = 0.0,
    normalise_weights: bool = False,
    normalise_batch: bool = False,
) -> dict[str, Tensor]:
    """KEY: (B,) the weighted advantage of each reward; they add up to `each_then_sum`."""
    total = sum(weights[key] for key in values) if normalise_weights else 1.0
    parts = {
        key: group_advantages(
            value.double(),
            groups,
            scale,
            unbiased=unbiased,
            epsilon=epsilon,
            floor=floor,
            trimmed=trimmed,
        )
        * (weights[key] / total)
        for key, value in values.items()
    }
    if not normalise_batch:
        return parts
    spread = deviation(torch.stack(list(parts.values())).sum(dim=0), unbiased=unbiased)
    return {key: over(part - part.mean(), spread, epsilon, floor) for key, part in parts.items()}


def shares(parts: Mapping[str, Tensor], kept: Tensor) -> dict[str, float]:
    """KEY: mean absolute part over the kept samples, as a fraction of all; they add up to 1.

    parts: KEY: (B,). kept: (B,) bool. Empty where there is nothing to share.
    """
    sizes = {key: float(part[kept].abs().sum()) for key, part in parts.items()}
    whole = sum(sizes.values())
    return {key: size / whole for key, size in sizes.items()} if whole > 0 else {}
