"""One update of an estimator through the engine, and the same loss by a joint graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater.engine import backpropagate
from headwater.randomness import generator_of
from headwater.testing.toy_flow import ToyFlow, other_reward, roll_out, smooth_reward
from headwater.types import Batch, Credit, Diagnostics, Rollout, Scores, Surrogate
from headwater_direct import Direct

REWARDS = {"smooth": smooth_reward, "other": other_reward}
WEIGHTS = {"smooth": 0.7, "other": 1.3}
MARGINS = {"smooth": 0.1, "other": 0.5}
"""On the toy some samples are beyond each margin and some are not."""


@attrs.frozen(eq=False)
class Update:
    surrogate: Surrogate
    credit: Credit
    diagnostics: Diagnostics


def scores_of(flow: ToyFlow, endpoint: Tensor, batch: Batch, count: int) -> Scores:
    images = flow.decode(endpoint)
    values = {key: reward(images, batch) for key, reward in REWARDS.items()}
    return Scores(values=values, weights=WEIGHTS, margins=dict.fromkeys(REWARDS), count=count)


def build(estimator: Any, flow: ToyFlow, rollout: Rollout, seed: int) -> Surrogate:
    """Call the hook as pluggy does: by name, with the arguments it asks for."""
    offered = {"backbone": flow, "rollout": rollout, "generator": generator_of("draw", seed)}
    names = estimator.build_surrogate.__func__.__code__
    asked = names.co_varnames[1 : names.co_argcount]
    with torch.no_grad():
        return estimator.build_surrogate(**{name: offered[name] for name in asked})


def update(
    estimator: Any,
    flow: ToyFlow,
    rollout: Rollout,
    seed: int,
    *,
    samples: int | None = None,
    algorithm: Direct | None = None,
    mode: str = "stream",
) -> Update:
    """Accumulate one micro-batch's gradient. samples: planned, before the estimator repeats."""
    algorithm = Direct(margin=MARGINS) if algorithm is None else algorithm
    surrogate = build(estimator, flow, rollout, seed)
    endpoint = surrogate.endpoint.detach().requires_grad_()
    surrogate = attrs.evolve(surrogate, endpoint=endpoint)
    batch = surrogate.rollout.batch
    repeats = len(batch) // len(rollout.batch)
    count = (len(rollout.batch) if samples is None else samples) * repeats
    credit = algorithm.credit(scores_of(flow, endpoint, batch, count), surrogate)
    gradient = credit.endpoint_gradient
    diagnostics = backpropagate(flow, rollout, surrogate, algorithm, gradient, mode, credit)
    return Update(surrogate, credit, diagnostics)


def update_in_parts(estimator: Any, flow: ToyFlow, batch: Batch, seed: int, size: int) -> None:
    """The same update over micro-batches, each rolled out anew; n stays the whole batch's."""
    for start in range(0, len(batch), size):
        part = batch.index(range(start, start + size))
        update(estimator, flow, roll_out(flow, part), seed, samples=len(batch))


def hinge(values: dict[str, Tensor], margins: dict[str, float] | float | None) -> Tensor:
    """(B,) sum_k weight_k max(0, margin_k - r_k), or -sum_k weight_k r_k without a margin."""
    total = torch.zeros_like(next(iter(values.values())))
    for key, value in values.items():
        if margins is None:
            total = total - WEIGHTS[key] * value
        else:
            margin = margins[key] if isinstance(margins, dict) else margins
            total = total + WEIGHTS[key] * (margin - value).clamp(min=0)
    return total


def joint_backward(
    flow: ToyFlow,
    batch: Batch,
    endpoints: Sequence[tuple[Tensor, Tensor, Sequence[int]]],
    margins: dict[str, float] | float | None = MARGINS,
) -> None:
    """One backward of L = (1/n) sum_b w_b l_b over (endpoint, weights, samples) triples."""
    count = sum(len(endpoint) for endpoint, _, _ in endpoints)
    loss = torch.zeros((), dtype=torch.float64)
    for endpoint, weights, samples in endpoints:
        images, asked = flow.decode(endpoint), batch.index(list(samples))
        values = {key: reward(images, asked) for key, reward in REWARDS.items()}
        loss = loss + (weights * hinge(values, margins)).sum()
    (loss / count).backward()
