"""The dynamics `ddim-eta`."""

from __future__ import annotations

from typing import ClassVar

import attrs
from torch import Tensor

from headwater.protocols import Transition
from headwater.types import at_least_float32
from headwater.validators import above, in_range
from headwater_ddim_eta import steps


@attrs.frozen(eq=False)
class DdimEta:
    """Steps that replace a part of the noise: std = eta times the ancestral sampler's.

    The noise is tied to the size of the step, as sqrt(h): eta means the same at 10 steps and at
    40, and the last step adds none. The mean keeps the variance that the fresh noise takes, so
    that a step leaves the marginals as they are wherever the velocity is right, however long the
    step (an Euler-Maruyama step of an SDE does so only as h goes to 0).
    """

    stochastic: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2010.02502"
    title: ClassVar[str] = "DDIM's eta on a flow"

    eta: float = attrs.field(default=1.0, validator=[above(0), in_range(0, 1)])
    """1 adds the ancestral sampler's noise; towards 0 the steps become Euler's."""

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean (B, *latent) and standard deviation of step i; 0 for a step to the image."""
        t, s = _pair(i, sigmas)
        std = self._std(t, s)
        x, v = at_least_float32(x), at_least_float32(v)
        return Transition(mean=steps.mean(x, v, t, s, std), std=std)

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """(B,) mean log-density at `next`. ValueError for a step without noise."""
        _check_noisy(transition.std)
        return steps.log_prob(next, transition.mean, transition.std)

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """c (next - mean) / (D std^2), (B, *latent)."""
        _check_noisy(transition.std)
        scale = self.sensitivity(i, sigmas) / (next[0].numel() * transition.std**2)
        return scale * (next - transition.mean)

    def sensitivity(self, i: int, sigmas: Tensor) -> float:
        """c = d mean / d v of step i."""
        t, s = _pair(i, sigmas)
        return steps.sensitivity(t, s, self._std(t, s))

    def _std(self, t: float, s: float) -> float:
        return self.eta * steps.ancestral_std(t, s)


def _pair(i: int, sigmas: Tensor) -> tuple[float, float]:
    """sigma of step i and of the next."""
    return float(sigmas[i]), float(sigmas[i + 1])


def _check_noisy(std: float) -> None:
    if std == 0:
        raise ValueError("a step to the image adds no noise and has no log-probability")
