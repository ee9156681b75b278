"""The algorithm `direct`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.engine import endpoint_gradient, euler_upstream
from headwater.types import Credit, Group, Rollout, Scores, Surrogate

if TYPE_CHECKING:
    from headwater.composition import Run

Margin = float | dict[str, float] | Literal["stated", "none"]


def _is_margin(_: object, __: object, value: Any) -> None:
    """Numbers, a table of numbers, or one of the two words; the run file's border and Python's."""
    if value in ("stated", "none"):
        return
    numbers = value.values() if isinstance(value, dict) else [value]
    if any(not isinstance(n, int | float) or not math.isfinite(n) for n in numbers):
        raise ValueError(f"expected finite numbers, 'stated' or 'none', got {value!r}")


@attrs.frozen(eq=False)
class Direct:
    """A hinge on differentiable rewards, its gradient taken at the endpoint.

    l_b = sum_k weight_k max(0, margin_k - r_kb). A sample above every margin has no gradient.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    needs_stochastic_steps: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv 2606.11075"
    title: ClassVar[str] = "Direct reward gradient with a hinge"
    metrics: ClassVar[Mapping[str, str]] = {
        "share/KEY": "with two rewards or more: part of the image's gradient that comes from KEY",
    }

    margin: Margin = attrs.field(default="stated", validator=_is_margin)
    """A number for all rewards, a table by reward key, "stated" (each reward's own) or "none"."""

    @hookimpl
    def compute_upstream(self, group: Group, rollout: Rollout, carried: Tensor) -> Tensor:
        """s_i = -h_i dL/dx_N."""
        return euler_upstream(group, rollout, carried)

    def problems(self, run: Run) -> list[str]:
        """Margins that do not fit the run's rewards."""
        stated = {key: named.plugin.margin for key, named in run.rewards.items()}
        try:
            margins_for(stated, self.margin)
        except ValueError as error:
            return [str(error)]
        return []

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
    margins = margins_for(scores.margins, margin)
    parts = [
        scores.weights[key] * (margins[key] - value).clamp(min=0)
        for key, value in scores.values.items()
    ]
    return sum(parts[1:], start=parts[0])


def margins_for(stated: Mapping[str, float | None], margin: Margin) -> Mapping[str, float]:
    """A margin for every reward key; ValueError where one is missing or too many are given."""
    if margin == "none":
        return {}
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
            f"reward {missing[0]!r} states no margin; set margin to a number, a table by reward "
            f'key, or "none"'
        )
    return known
