"""The algorithm `direct`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.engine import endpoint_gradient, euler_upstream
from headwater.types import Credit, Group, Rollout, Scores, Surrogate

Margin = float | dict[str, float] | Literal["stated", "none"]


@attrs.frozen(eq=False)
class Direct:
    """A hinge on differentiable rewards, its gradient taken at the endpoint.

    l_b = sum_k weight_k max(0, margin_k - r_kb). A sample above every margin has no gradient.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    needs_stochastic_steps: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv 2606.11075 (hinge); arXiv 2309.17400"

    margin: Margin = "stated"
    """A number for all rewards, a table by reward key, "stated" (each reward's own) or "none"."""

    @hookimpl
    def compute_upstream(self, group: Group, rollout: Rollout, carried: Tensor) -> Tensor:
        """s_i = -h_i dL/dx_N."""
        return euler_upstream(group, rollout, carried)

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """None: the sample is a deterministic function of its noise."""
        return ()

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """None: the estimator chooses."""
        return ()

    def credit(self, scores: Scores, surrogate: Surrogate) -> Credit:
        """The gradient at the endpoint, sample weights and 1/n in it."""
        return endpoint_gradient(hinge(scores, self.margin), surrogate, scores.count)


def hinge(scores: Scores, margin: Margin) -> Tensor:
    """l_b of every sample, (B',), with autograd history."""
    if margin == "none":
        return -scores.total()
    margins = _margins(scores, margin)
    parts = [
        scores.weights[key] * (margins[key] - value).clamp(min=0)
        for key, value in scores.values.items()
    ]
    return sum(parts[1:], start=parts[0])


def _margins(scores: Scores, margin: Margin) -> Mapping[str, float]:
    """A margin for every reward; ValueError where one is missing or too many are given."""
    if isinstance(margin, dict):
        if set(margin) != set(scores.values):
            raise ValueError(
                f"[algorithm] margin names {sorted(margin)}, "
                f"the rewards are {sorted(scores.values)}"
            )
        return margin
    if margin != "stated":
        return dict.fromkeys(scores.values, float(margin))
    stated = {key: m for key, m in scores.margins.items() if m is not None}
    missing = sorted(set(scores.values) - set(stated))
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} states no margin; set [algorithm] margin to a number, a table "
            f'by reward key, or "none"'
        )
    return stated
