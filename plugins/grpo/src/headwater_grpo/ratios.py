"""The clipped objective, GRPO-Guard's ratio, the KL terms, and the upstream of each.

L = (1/n) sum max(-A r, -A clip(r, 1 - low, 1 + high)). Everything is a closed form: with
r = exp(logp - logp_old), dL/dv = -(A r / n) dlogp/dv where the term is not clipped, else 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headwater_grpo.steps import mean_over_latent, raised

KL = Literal["x", "x-flow-grpo", "v"]


def clipped_loss(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """(B,) max(-A r, -A clip(r, 1 - low, 1 + high))."""
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))


def unclipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """(B,) whether the term has a gradient: not (A > 0 and r > 1 + high), nor its mirror."""
    above = (advantages > 0) & (ratio > 1 + high)
    below = (advantages < 0) & (ratio < 1 - low)
    return ~(above | below)


def policy_upstream(
    log_prob_grad: Tensor, ratio: Tensor, advantages: Tensor, low: float, high: float, count: float
) -> Tensor:
    """s = -(A r / n) [unclipped] dlogp/dv, (B, *latent).

    log_prob_grad: (B, *latent) d log r / dv of the ratio that is used. count: n.
    """
    factor = -advantages * ratio / count * unclipped(ratio, advantages, low, high)
    return along(factor, log_prob_grad) * log_prob_grad


def along(factor: Tensor, x: Tensor) -> Tensor:
    """(B,) shaped to multiply (B, *latent)."""
    return factor.to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def fresh_noise(next: Tensor, mean_old: Tensor, std: float) -> Tensor:
    """eps of the rollout's step: (y - m_old) / std, (B, *latent)."""
    return (raised(next) - raised(mean_old)) / std


def guard_log_ratio(mean: Tensor, mean_old: Tensor, noise: Tensor) -> Tensor:
    """(B,) log r = mean((m - m_old) eps) (GRPO-Guard, arXiv 2510.22319).

    It is std times the plain log-ratio without its bias -mean (m - m_old)^2 / (2 std^2), so
    that its scale no longer depends on the step. Kept per sample.
    """
    return mean_over_latent((raised(mean) - raised(mean_old)) * noise)


def guard_log_ratio_of(
    log_prob: Tensor, log_prob_old: Tensor, mean: Tensor, mean_old: Tensor, std: float
) -> Tensor:
    """(B,) the same from log-probabilities: std (logp - logp_old + mean (dm)^2 / (2 std^2))."""
    bias = mean_over_latent((raised(mean) - raised(mean_old)) ** 2) / (2 * std * std)
    return std * (log_prob - log_prob_old + bias)


def guard_log_ratio_grad(noise: Tensor, sensitivity: float) -> Tensor:
    """d log r / dv = c eps / D, (B, *latent)."""
    return noise * (sensitivity / noise[0].numel())


def kl(space: KL, new: Tensor, reference: Tensor, std: float, dt: float) -> Tensor:
    """(B,) distance from the reference, by its space.

    new, reference: (B, *latent) means for "x" and "x-flow-grpo", velocities for "v".
    "x": mean (m - m_ref)^2 / (2 std^2), the Gaussian KL per dimension. "x-flow-grpo": the same
    times -dt, since Flow-GRPO divides by g^2 and std = g sqrt(-dt). "v": mean (v - v_ref)^2.
    """
    squares = mean_over_latent((raised(new) - raised(reference)) ** 2)
    return squares * _kl_scale(space, std, dt)


def kl_upstream(
    space: KL, new: Tensor, reference: Tensor, std: float, dt: float, sensitivity: float
) -> Tensor:
    """d kl / dv, (B, *latent): c (m - m_ref) / (D std^2), or 2 (v - v_ref) / D."""
    difference = raised(new) - raised(reference)
    inner = 1.0 if space == "v" else sensitivity
    return difference * (2 * inner * _kl_scale(space, std, dt) / difference[0].numel())


def _kl_scale(space: KL, std: float, dt: float) -> float:
    if space == "v":
        return 1.0
    return (1.0 if space == "x" else -dt) / (2 * std * std)
