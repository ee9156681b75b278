"""Core's own dynamics: the Euler step of the probability-flow ODE."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from headwater.protocols import Transition
from headwater.types import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(eq=False)
class Ode:
    """Euler steps x_{i+1} = x_i - h_i v_i. Deterministic: no step can be scored or trained."""

    stochastic: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv 2210.02747"

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean of step i, with std 0."""
        mean = at_least_float32(x) + self.sensitivity(i, sigmas) * at_least_float32(v)
        return Transition(mean=mean, std=0.0)

    def sensitivity(self, i: int, sigmas: Tensor) -> float:
        """-h_i, d mean / d v."""
        return float(sigmas[i + 1]) - float(sigmas[i])

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """Raises ValueError: a deterministic step has no density."""
        raise ValueError("an ODE step is deterministic and has no log-probability")

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """Raises ValueError: a deterministic step has no density."""
        raise ValueError("an ODE step is deterministic and has no log-probability")
