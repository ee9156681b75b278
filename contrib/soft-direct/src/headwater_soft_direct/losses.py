"""The losses of `soft-direct`: pure functions of gaps, one column a reward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def each(gaps: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """sum_k w_k T softplus(gap_k / T): every reward has a smooth hinge of its own.

    gaps: (B, K) margin minus reward. weights: (K,), positive. Returns: (B,).
    """
    return (weights * temperature * softplus(gaps / temperature)).sum(dim=1)


def worst(gaps: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """T log(1 + sum_k exp(w_k gap_k / T)): a smooth max(0, the largest weighted gap).

    Its gradient in the gaps is w times a softmax over the gaps and a zero, so that the reward that
    lacks most has most of it and none is left where all margins are passed. With one reward of
    weight 1 it is `each`.
    """
    scaled = weights * gaps / temperature
    nothing = torch.zeros_like(scaled[:, :1])
    return temperature * torch.logsumexp(torch.cat([nothing, scaled], dim=1), dim=1)
