"""One stochastic step of a flow-matching rollout, its density and its sensitivity.

With dt = sigma_next - sigma < 0, h = sqrt(-dt) and any g >= 0,

    m = x + dt (v + g^2 / (2 sigma) (x + (1 - sigma) v)),    y = m + g h eps

has the marginals of the ODE dx = v dsigma (Flow-GRPO, arXiv 2505.05470, eq. 9). `flow-sde` and
`dance-sde` differ in g alone. CPS (arXiv 2509.05952) mixes the predicted image and noise so that
the total noise coefficient of y is exactly sigma_next. Tensors are computed in at least float32,
coefficients in Python's double.
"""

from __future__ import annotations

import math

from torch import Tensor


def raised(x: Tensor) -> Tensor:
    """Half types cast up to float32; float32 and float64 stay."""
    return x.float() if x.element_size() < 4 else x


def flow_sde_scale(sigma: float, noise_level: float, sigma_max: float) -> float:
    """g = a sqrt(sigma / (1 - sigma)); `sigma_max` stands for sigma where it is exactly 1.

    sigma_max: sigmas[1] of the schedule in force, so that the first step's std is a exactly
    where the schedule starts at 1.
    """
    return noise_level * math.sqrt(sigma / (1 - (sigma_max if sigma == 1 else sigma)))


def step_std(sigma: float, sigma_next: float, g: float) -> float:
    """Full standard deviation of an SDE step: g sqrt(-dt)."""
    return g * math.sqrt(sigma - sigma_next)


def predicted_image(x: Tensor, v: Tensor, sigma: float) -> Tensor:
    """x0 = x - sigma v, (B, *latent)."""
    return raised(x) - sigma * raised(v)


def predicted_noise(x: Tensor, v: Tensor, sigma: float) -> Tensor:
    """eps = x + (1 - sigma) v, (B, *latent)."""
    return raised(x) + (1 - sigma) * raised(v)


def ode_mean(x: Tensor, v: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """An Euler step of the ODE, (B, *latent)."""
    return raised(x) + (sigma_next - sigma) * raised(v)


def sde_mean(x: Tensor, v: Tensor, sigma: float, sigma_next: float, g: float) -> Tensor:
    """Mean of an SDE step, (B, *latent)."""
    x, v = raised(x), raised(v)
    dt, drift = sigma_next - sigma, g * g / (2 * sigma)
    return x * (1 + drift * dt) + v * sde_sensitivity(sigma, sigma_next, g)


def sde_sensitivity(sigma: float, sigma_next: float, g: float) -> float:
    """c = dm/dv = dt (1 + g^2 (1 - sigma) / (2 sigma))."""
    return (sigma_next - sigma) * (1 + g * g * (1 - sigma) / (2 * sigma))


def cps_std(sigma_next: float, noise_level: float) -> float:
    """std = sigma_next sin(a pi / 2), for a in [0, 1]."""
    return sigma_next * math.sin(noise_level * math.pi / 2)


def _kept_noise(sigma_next: float, std: float) -> float:
    """Coefficient of the predicted noise: sqrt(sigma_next^2 - std^2)."""
    return math.sqrt(max(sigma_next * sigma_next - std * std, 0.0))


def cps_mean(x: Tensor, v: Tensor, sigma: float, sigma_next: float, std: float) -> Tensor:
    """m = (1 - sigma_next) x0 + sqrt(sigma_next^2 - std^2) eps, (B, *latent)."""
    image, noise = predicted_image(x, v, sigma), predicted_noise(x, v, sigma)
    return (1 - sigma_next) * image + _kept_noise(sigma_next, std) * noise


def cps_sensitivity(sigma: float, sigma_next: float, std: float) -> float:
    """c = dm/dv = -(1 - sigma_next) sigma + sqrt(sigma_next^2 - std^2) (1 - sigma)."""
    return -(1 - sigma_next) * sigma + _kept_noise(sigma_next, std) * (1 - sigma)


def mean_over_latent(x: Tensor) -> Tensor:
    """(B,) mean over every dimension but the first."""
    return x.flatten(1).mean(dim=1)


def gaussian_log_prob(next: Tensor, mean: Tensor, std: float, *, normaliser: bool = True) -> Tensor:
    """(B,) mean over the latent of log N(next; mean, std^2).

    A mean and not a sum: differences are log-ratios per dimension. normaliser: keep the terms
    that do not depend on the mean; ratios are the same without them.
    """
    check_noisy(std)
    squares = -((raised(next) - raised(mean)) ** 2) / (2 * std * std)
    if normaliser:
        squares = squares - (math.log(std) + 0.5 * math.log(2 * math.pi))
    return mean_over_latent(squares)


def gaussian_log_prob_grad(next: Tensor, mean: Tensor, std: float, sensitivity: float) -> Tensor:
    """d log_prob / dv = c (y - m) / (D std^2), (B, *latent)."""
    check_noisy(std)
    difference = raised(next) - raised(mean)
    return difference * (sensitivity / (difference[0].numel() * std * std))


def cps_log_prob(next: Tensor, mean: Tensor) -> Tensor:
    """(B,) -mean (y - m)^2: CPS scores without a variance, in all public trainers."""
    return mean_over_latent(-((raised(next) - raised(mean)) ** 2))


def cps_log_prob_grad(next: Tensor, mean: Tensor, sensitivity: float) -> Tensor:
    """d log_prob / dv = 2 c (y - m) / D, (B, *latent)."""
    difference = raised(next) - raised(mean)
    return difference * (2 * sensitivity / difference[0].numel())


def take(mean: Tensor, std: float, noise: Tensor) -> Tensor:
    """y = m + std eps, (B, *latent)."""
    return mean + std * noise.to(mean.dtype)


def check_noisy(std: float) -> None:
    """ValueError for a deterministic step, which has no density."""
    if not std > 0:
        raise ValueError(f"a step of standard deviation {std} is deterministic and has no density")


__all__ = [
    "cps_log_prob",
    "cps_log_prob_grad",
    "cps_mean",
    "cps_sensitivity",
    "cps_std",
    "flow_sde_scale",
    "gaussian_log_prob",
    "gaussian_log_prob_grad",
    "mean_over_latent",
    "ode_mean",
    "predicted_image",
    "predicted_noise",
    "sde_mean",
    "sde_sensitivity",
    "step_std",
    "take",
]
