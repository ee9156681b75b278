"""Core's own dynamics: the Euler step of the probability-flow ODE."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from headwater.protocols import Transition

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(eq=False)
class Ode:
    """Euler steps x_{i+1} = x_i - h_i v_i. Deterministic: no step can be scored or trained."""

    stochastic: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv 2210.02747"

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean of step i, with std 0."""
        h = float(sigmas[i]) - float(sigmas[i + 1])
        return Transition(mean=x - h * v, std=0.0)

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """Raises ValueError: a deterministic step has no density."""
        raise ValueError("an ODE step is deterministic and has no log-probability")

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """Raises ValueError: a deterministic step has no density."""
        raise ValueError("an ODE step is deterministic and has no log-probability")
