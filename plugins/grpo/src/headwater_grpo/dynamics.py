"""The stochastic dynamics `flow-sde`, `dance-sde` and `cps`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from headwater.protocols import Transition
from headwater.validators import above, in_range
from headwater_grpo import steps

if TYPE_CHECKING:
    from torch import Tensor


def _pair(i: int, sigmas: Tensor) -> tuple[float, float]:
    """(sigma, sigma_next) of step i. Indexed by step number, never looked up by value."""
    return float(sigmas[i]), float(sigmas[i + 1])


@attrs.frozen(eq=False)
class _Sde:
    """An SDE step with some g; see `headwater_grpo.steps`."""

    stochastic: ClassVar[bool] = True

    def _scale(self, i: int, sigmas: Tensor) -> float:
        raise NotImplementedError

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean (B, *latent) and full standard deviation g sqrt(-dt) of step i."""
        sigma, after = _pair(i, sigmas)
        g = self._scale(i, sigmas)
        mean = steps.sde_mean(x, v, sigma, after, g)
        return Transition(mean=mean, std=steps.step_std(sigma, after, g))

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """(B,) mean over the latent of the Gaussian log-density."""
        return steps.gaussian_log_prob(next, transition.mean, transition.std)

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """c (y - m) / (D std^2), (B, *latent)."""
        c = self.sensitivity(i, sigmas)
        return steps.gaussian_log_prob_grad(next, transition.mean, transition.std, c)

    def sensitivity(self, i: int, sigmas: Tensor) -> float:
        """c = dm/dv of step i."""
        return steps.sde_sensitivity(*_pair(i, sigmas), self._scale(i, sigmas))


@attrs.frozen(eq=False)
class FlowSde(_Sde):
    """Flow-GRPO's SDE: g = a sqrt(sigma / (1 - sigma))."""

    paper: ClassVar[str] = "arXiv 2505.05470"
    title: ClassVar[str] = "Flow-SDE"

    noise_level: float = attrs.field(default=0.7, validator=above(0))
    """a. The std of a first step from sigma 1 is exactly this."""

    def _scale(self, i: int, sigmas: Tensor) -> float:
        return steps.flow_sde_scale(float(sigmas[i]), self.noise_level, float(sigmas[1]))


@attrs.frozen(eq=False)
class DanceSde(_Sde):
    """DanceGRPO's SDE: a constant g = eta."""

    paper: ClassVar[str] = "arXiv 2505.07818"
    title: ClassVar[str] = "Dance-SDE"

    eta: float = attrs.field(default=0.3, validator=above(0))
    """g of every step."""

    def _scale(self, i: int, sigmas: Tensor) -> float:
        return self.eta


@attrs.frozen(eq=False)
class Cps:
    """Coefficients-preserving sampling. Its log-density is -mean (y - m)^2, without a variance."""

    stochastic: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2509.05952"
    title: ClassVar[str] = "CPS"

    noise_level: float = attrs.field(default=0.7, validator=[above(0), in_range(0, 1)])
    """a: std = sigma_next sin(a pi / 2). 1 replaces all noise."""

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean (B, *latent) and standard deviation of step i; 0 for the last step."""
        sigma, after = _pair(i, sigmas)
        std = steps.cps_std(after, self.noise_level)
        return Transition(mean=steps.cps_mean(x, v, sigma, after, std), std=std)

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """(B,) -mean (y - m)^2. ValueError for a deterministic step."""
        steps.check_noisy(transition.std)
        return steps.cps_log_prob(next, transition.mean)

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """2 c (y - m) / D, (B, *latent)."""
        steps.check_noisy(transition.std)
        return steps.cps_log_prob_grad(next, transition.mean, self.sensitivity(i, sigmas))

    def sensitivity(self, i: int, sigmas: Tensor) -> float:
        """c = dm/dv of step i."""
        sigma, after = _pair(i, sigmas)
        return steps.cps_sensitivity(sigma, after, steps.cps_std(after, self.noise_level))
