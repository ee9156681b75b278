"""The algorithm `soft-direct`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.engine import endpoint_gradient, euler_upstream
from headwater.types import Credit, Group, Rollout, Scores, Surrogate
from headwater.validators import above
from headwater_soft_direct import losses

if TYPE_CHECKING:
    from headwater.composition import Run

Margin = float | dict[str, float] | Literal["stated"]


def _is_margin(_: object, __: object, value: Any) -> None:
    numbers = value.values() if isinstance(value, dict) else [value]
    if value != "stated" and any(not math.isfinite(number) for number in numbers):
        raise ValueError(f"expected finite numbers or 'stated', got {value!r}")


@attrs.define(eq=False)
class SoftDirect:
    """A smooth hinge on differentiable rewards, each for itself or the worst first.

    With gap_k = margin_k - r_k and temperature T a sample's loss is
    each:  sum_k weight_k T softplus(gap_k / T)
    worst: T log(1 + sum_k exp(weight_k gap_k / T))
    T to 0 is the hinge of `direct` (each) or the hinge of the largest weighted gap (worst). A
    large T is a plain reward gradient.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    needs_stochastic_steps: ClassVar[bool] = False
    title: ClassVar[str] = "Direct reward gradient with a smooth hinge"
    metrics: ClassVar[Mapping[str, str]] = {
        "pull/KEY": "mean of -dl/dr of reward KEY: its weight far below its margin, 0 far above",
    }

    temperature: float = attrs.field(default=0.1, validator=above(0))
    """T, in the rewards' own unit: how far around a margin the gradient fades."""
    combine: Literal["each", "worst"] = "each"
    """How several rewards make one loss."""
    margin: Margin = attrs.field(default="stated", validator=_is_margin)
    """A number for all rewards, a table by reward key, or "stated" (each reward's own)."""
    _pulls: dict[str, list[float]] = attrs.field(init=False, factory=dict)

    def problems(self, run: Run) -> list[str]:
        """Margins that do not fit the run's rewards, and weights that are not positive."""
        stated = {key: named.plugin.margin for key, named in run.rewards.items()}
        found = [
            f"the weight of reward {key!r} must be positive, got {weight}; a smooth hinge bounds "
            f"a reward from below only"
            for key in run.rewards
            if (weight := run.file.rewards[key].core["weight"]) <= 0
        ]
        try:
            margins_for(stated, self.margin)
        except ValueError as error:
            found.append(str(error))
        return found

    @hookimpl
    def compute_upstream(self, group: Group, rollout: Rollout, carried: Tensor) -> Tensor:
        """s_i = -h_i dL/dx_N, (S, B, *latent)."""
        return euler_upstream(group, rollout, carried)

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """None: the sample is a deterministic function of its noise."""
        return ()

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """None: the estimator chooses."""
        return ()

    def credit(self, scores: Scores, surrogate: Surrogate) -> Credit:
        """The gradient at the endpoint, sample weights and 1/n in it."""
        margins = margins_for(scores.margins, self.margin)
        keys = list(scores.values)
        gaps = torch.stack([margins[key] - scores.values[key] for key in keys], dim=1)  # (B', K)
        weights = gaps.new_tensor([scores.weights[key] for key in keys])
        loss = getattr(losses, self.combine)
        self._note(keys, gaps.detach(), weights, loss)
        return endpoint_gradient(loss(gaps, weights, self.temperature), surrogate, scores.count)

    def measured(self) -> Mapping[str, float]:
        """Since the last call, by reward: `pull/KEY`."""
        found = {f"pull/{k}": sum(v) / len(v) for k, v in self._pulls.items()}
        self._pulls.clear()
        return found

    def _note(self, keys: list[str], gaps: Tensor, weights: Tensor, loss: Any) -> None:
        with torch.enable_grad():
            leaf = gaps.requires_grad_()
            (slopes,) = torch.autograd.grad(loss(leaf, weights, self.temperature).sum(), leaf)
        for key, column in zip(keys, slopes.T, strict=True):
            self._pulls.setdefault(key, []).extend(column.tolist())


def margins_for(stated: Mapping[str, float | None], margin: Margin) -> Mapping[str, float]:
    """A margin for every reward key; ValueError where one is missing or too many are given."""
    if isinstance(margin, dict):
        if set(margin) != set(stated):
            raise ValueError(f"margin names {sorted(margin)}, the rewards are {sorted(stated)}")
        return margin
    if margin != "stated":
        return dict.fromkeys(stated, float(margin))
    known = {key: value for key, value in stated.items() if value is not None}
    missing = sorted(set(stated) - set(known))
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} states no margin; set margin to a number or a table by "
            f"reward key"
        )
    return known
