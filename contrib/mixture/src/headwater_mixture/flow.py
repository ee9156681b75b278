"""The closed form: densities, responsibilities and velocity of a Gaussian mixture under the flow.

With x = (1 - s) data + s noise and data ~ sum_k w_k N(mean_k, spread^2), x is again a mixture,
    x ~ sum_k w_k N((1 - s) mean_k, variance),    variance = (1 - s)^2 spread^2 + s^2,
and the velocity of the flow is v = E[noise - data | x], an average of the components' own
velocities by their responsibilities.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def velocity(x: Tensor, sigma: Tensor, weights: Tensor, means: Tensor, spread: float) -> Tensor:
    """v (B, *latent) of x (B, *latent) at sigma (B,). weights: (B, K). means: (K, *latent)."""
    keep, variance = _scales(sigma, spread)
    share = responsibilities(x, sigma, weights, means, spread)  # (B, K)
    middle = torch.tensordot(share, means, dims=1)  # (B, *latent)
    shape = (-1, *[1] * (x.dim() - 1))
    keep, variance, sigma = keep.view(shape), variance.view(shape), sigma.view(shape)
    v: Tensor = (sigma - keep * spread**2) / variance * (x - keep * middle) - middle
    return v


def responsibilities(
    x: Tensor, sigma: Tensor, weights: Tensor, means: Tensor, spread: float
) -> Tensor:
    """(B, K): the probability of each component given x (B, *latent) at sigma (B,)."""
    return torch.softmax(_joint(x, sigma, weights, means, spread), dim=1)


def log_density(x: Tensor, sigma: Tensor, weights: Tensor, means: Tensor, spread: float) -> Tensor:
    """(B,) log-density of the marginal at sigma (B,), summed over the latent."""
    _, variance = _scales(sigma, spread)
    constant = x[0].numel() / 2 * torch.log(2 * math.pi * variance)
    return torch.logsumexp(_joint(x, sigma, weights, means, spread), dim=1) - constant


def _joint(x: Tensor, sigma: Tensor, weights: Tensor, means: Tensor, spread: float) -> Tensor:
    """log w_k - |x - (1 - s) mean_k|^2 / (2 variance), (B, K); -inf where w_k is 0."""
    keep, variance = _scales(sigma, spread)
    flat, centres = x.flatten(1), means.flatten(1)
    square = (
        (flat**2).sum(1, keepdim=True)
        - 2 * keep[:, None] * (flat @ centres.T)
        + keep[:, None] ** 2 * (centres**2).sum(1)
    )
    return weights.log() - square / (2 * variance[:, None])


def _scales(sigma: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """(1 - sigma) and the variance of a component at sigma, (B,) each."""
    keep = 1 - sigma
    return keep, keep**2 * spread**2 + sigma**2
