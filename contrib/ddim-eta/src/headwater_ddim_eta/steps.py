"""The arithmetic of `ddim-eta`: pure functions of numbers and tensors.

A step goes from sigma t to sigma s < t, with x_t = (1 - t) data + t noise. The model's velocity
gives data = x - t v and noise = x + (1 - t) v, and a step that replaces a part of the noise is

    y = (1 - s) data + sqrt(s^2 - std^2) noise + std fresh

(DDIM, arXiv 2010.02502, equation 12, written for a flow). Whatever std <= s is, y has the right
marginal where data is right.
"""

from __future__ import annotations

import math

from torch import Tensor


def ancestral_std(t: float, s: float) -> float:
    """Standard deviation of x_s given x_t and the data, where x_t is x_s shrunk plus fresh noise.

    s sqrt(1 - r^2) with r = (1 - t) s / ((1 - s) t), DDIM's equation 16 at eta 1. It falls with
    the step as sqrt(t - s), is s for a step from pure noise, and 0 for a step to the image.
    """
    if s == 0:
        return 0.0
    kept = (1 - t) * s / ((1 - s) * t)
    return s * math.sqrt(max(0.0, 1 - kept**2))


def mean(x: Tensor, v: Tensor, t: float, s: float, std: float) -> Tensor:
    """(1 - s) data + sqrt(s^2 - std^2) noise, (B, *latent)."""
    return (1 - s) * (x - t * v) + _rest(s, std) * (x + (1 - t) * v)


def sensitivity(t: float, s: float, std: float) -> float:
    """d mean / d v: -(1 - s) t + sqrt(s^2 - std^2) (1 - t); s - t where std is 0."""
    return -(1 - s) * t + _rest(s, std) * (1 - t)


def log_prob(after: Tensor, mean: Tensor, std: float) -> Tensor:
    """(B,) mean over the latent of the Gaussian log-density."""
    error = (after - mean) / std
    return (-(error**2) / 2).flatten(1).mean(dim=1) - math.log(std) - math.log(2 * math.pi) / 2


def _rest(s: float, std: float) -> float:
    return math.sqrt(max(0.0, s**2 - std**2))
