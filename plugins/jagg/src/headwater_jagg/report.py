"""How near JAGG comes to the exact gradient, and why it may not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headwater_jagg.basis import Times, alphas


def compare(
    jagg_gradient: Sequence[Tensor], exact_gradient: Sequence[Tensor]
) -> tuple[float, float, float]:
    """Cosine, relative error |J - E| / |E| and norm ratio |J| / |E| of two gradients.

    Both are lists of tensors of equal shapes, one a parameter; sums are float64. NaN where a
    zero gradient leaves a number without meaning.
    """
    JJ, EE = inner(jagg_gradient, jagg_gradient), inner(exact_gradient, exact_gradient)
    JE = inner(jagg_gradient, exact_gradient)
    pairs = zip(jagg_gradient, exact_gradient, strict=True)
    difference = [a.double() - b.double() for a, b in pairs]
    if EE == 0:
        return math.nan, math.nan, math.nan
    cosine = JE / math.sqrt(JJ * EE) if JJ > 0 else math.nan
    return cosine, math.sqrt(inner(difference, difference) / EE), math.sqrt(JJ / EE)


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Inner product of two lists of tensors, in float64."""
    pairs = zip(left, right, strict=True)
    return float(torch.stack([(a.double() * b.double()).sum() for a, b in pairs]).sum())


def chord_distance(states: Tensor, times: Times) -> Tensor:
    """How far states lie from the chord between the first and the last of them, (S, B).

    State j is compared with (1 - alpha_j) x_0 + alpha_j x_last, in units of |x_last - x_0|. JAGG
    is exact for a velocity linear in (x, t) only where this is zero; the noise of a stochastic
    step leads away from the chord.

    states: (S, B, *latent), at the start of each step. times: (S,).
    """
    x = states.double().flatten(2)  # (S, B, D)
    alpha = alphas(times).to(x.device).view(-1, 1, 1)
    chord = (1 - alpha) * x[0] + alpha * x[-1]
    length = torch.linalg.vector_norm(x[-1] - x[0], dim=-1)  # (B,)
    return torch.linalg.vector_norm(x - chord, dim=-1) / length
