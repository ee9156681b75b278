"""Group-relative advantages: what a sample is worth beside the others of its prompt."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor

Scale = Literal["group", "global", "none"]
Floor = Literal["add", "max"]


class Normalisation(TypedDict):
    """Keywords of `group_advantages` beside the scale."""

    unbiased: bool
    epsilon: float
    floor: Floor
    trimmed: float


class OfEach(TypedDict):
    """Keywords of `each_then_sum` beside those of `Normalisation`."""

    normalise_weights: bool
    normalise_batch: bool


def group_index(groups: Sequence[Hashable] | Tensor) -> Tensor:
    """(B,) the group ids numbered from 0 in the order they come."""
    if isinstance(groups, Tensor):  # its elements hash by identity, each a group of its own
        groups = groups.tolist()
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups])


def group_advantages(
    rewards: Tensor,
    groups: Sequence[Hashable] | Tensor,
    scale: Scale = "group",
    *,
    unbiased: bool = False,
    epsilon: float = 1e-4,
    floor: Floor = "add",
    trimmed: float = 0.0,
) -> Tensor:
    """(B,) rewards minus their group's mean, over a standard deviation.

    rewards: (B,). groups: (B,) ids; members need not be neighbours.
    scale: "group" takes each group's deviation, "global" that of all rewards, "none" 1.
    unbiased: divide by G - 1 instead of G. floor: std + epsilon, or max(std, epsilon).
    trimmed: leave the floor(G * trimmed) lowest rewards out of a group's statistics (MixGRPO).
    Computed in float64, so that the mean of equal float32 rewards is exact: its rounding over a
    small epsilon would be an advantage of nearly 1. Returns the dtype of `rewards`.

    Flow-GRPO: global or group, population, + 1e-4. DanceGRPO and MixGRPO: group, unbiased,
    + 1e-8. Flow-Factory: population, max(std, 1e-6).
    """
    dtype, rewards = rewards.dtype, rewards.double()
    index = group_index(groups).to(rewards.device)
    centred = torch.empty_like(rewards)
    spread = torch.empty_like(rewards)
    for number in range(int(index.max()) + 1):
        rows = index == number
        members = rewards[rows]
        counted = members[counted_rows(members, trimmed)]
        centred[rows] = members - counted.mean()
        spread[rows] = deviation(counted, unbiased=unbiased)
    if scale == "none":
        return centred.to(dtype)
    if scale == "global":
        spread = torch.full_like(rewards, float(deviation(rewards, unbiased=unbiased)))
    return over(centred, spread, epsilon, floor).to(dtype)


def counted_rows(members: Tensor, trimmed: float) -> Tensor:
    """Positions of a group's members that its statistics count, from the lowest on."""
    return members.argsort(stable=True)[int(len(members) * trimmed) :]


def over(centred: Tensor, spread: Tensor, epsilon: float, floor: Floor) -> Tensor:
    """Centred values over their deviation; 0 where both it and epsilon are 0."""
    bottom = spread + epsilon if floor == "add" else spread.clamp(min=epsilon)
    return torch.where(bottom == 0, 0.0, centred / bottom)


def deviation(values: Tensor, *, unbiased: bool) -> Tensor:
    """Standard deviation, exactly 0 for a single value and for equal ones."""
    if bool(values.max() == values.min()):
        return torch.zeros((), dtype=values.dtype, device=values.device)
    return values.std(correction=1 if unbiased else 0)


def weighted_sum(values: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """(B,) sum of w_k r_k."""
    parts = [weights[key] * value for key, value in values.items()]
    return sum(parts[1:], start=parts[0])


def each_then_sum(
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
) -> Tensor:
    """(B,) advantages of every reward by itself, then their weighted sum.

    normalise_weights: weights are divided by their sum (MixGRPO). normalise_batch: the sum is
    centred and scaled over the whole batch (Flow-Factory's gdpo).
    """
    each = {
        key: group_advantages(
            value,
            groups,
            scale,
            unbiased=unbiased,
            epsilon=epsilon,
            floor=floor,
            trimmed=trimmed,
        )
        for key, value in values.items()
    }
    total = sum(weights[key] for key in values) if normalise_weights else 1.0
    summed = weighted_sum(each, {key: weights[key] / total for key in values})
    if not normalise_batch:
        return summed
    exact = summed.double()
    spread = deviation(exact, unbiased=unbiased)
    return over(exact - exact.mean(), spread, epsilon, floor).to(summed.dtype)


def spread_mask(rewards: Tensor, groups: Sequence[Hashable] | Tensor) -> Tensor:
    """(B,) False for the samples of a group whose rewards are all equal."""
    index = group_index(groups).to(rewards.device)
    mask = torch.zeros_like(rewards, dtype=torch.bool)
    for number in range(int(index.max()) + 1):
        rows = index == number
        mask[rows] = bool(rewards[rows].max() > rewards[rows].min())
    return mask


def best_of(advantages: Tensor, groups: Sequence[Hashable] | Tensor, count: int) -> Tensor:
    """(B,) True for the ceil(count / 2) best and the floor(count / 2) worst of each group.

    The advantages are those of the whole group. Ties are broken by position.
    """
    index = group_index(groups).to(advantages.device)
    kept = torch.zeros_like(advantages, dtype=torch.bool)
    for number in range(int(index.max()) + 1):
        rows = (index == number).nonzero().flatten()
        order = rows[advantages[rows].argsort(descending=True, stable=True)]
        kept[order[: (count + 1) // 2]] = True
        kept[order[len(order) - count // 2 :]] = True
    return kept
