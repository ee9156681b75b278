"""Steps that carry their own upstream: `bptt`, `draft-k` and `exact`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import attrs
import torch

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import at_least


def alone(steps: Sequence[int], couplings: Sequence[float]) -> tuple[Group, ...]:
    """Every step a group of its own."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return tuple(Group((i,), (i,), one, a) for i, a in zip(steps, couplings, strict=True))


@attrs.frozen(eq=False)
class Bptt:
    """Full backpropagation through the sampling, one network graph at a time.

    The exact gradient of the sample's reward, the reference of all others.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    exact: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2309.17400"
    title: ClassVar[str] = "Full backpropagation"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "every step",
        "weights": "its own step",
        "coupling": "1",
    }

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """N groups with coupling 1."""
        steps = range(rollout.steps)
        groups = alone(steps, [1.0] * rollout.steps)
        return Surrogate(groups, rollout.state(rollout.steps), None, rollout)


@attrs.frozen(eq=False)
class DraftK:
    """Backpropagation through the last K steps (DRaFT-K, arXiv 2309.17400)."""

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = "arXiv 2309.17400"
    title: ClassVar[str] = "DRaFT-K"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "the last `k` steps",
        "weights": "its own step; earlier ones are dropped",
        "coupling": "1",
    }

    k: int = attrs.field(default=1, validator=at_least(1))
    """Steps from the end that carry gradient; no more than the rollout has."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """K groups; the gradient at the first one's input is not needed."""
        n = rollout.steps
        if self.k > n:
            raise ValueError(f"draft-k takes k = {self.k} steps of a rollout of {n}")
        groups = alone(range(n - self.k, n), [0.0] + [1.0] * (self.k - 1))
        return Surrogate(groups, rollout.state(n), None, rollout)


@attrs.frozen(eq=False)
class Exact:
    """Every trained step carries its own upstream: the exact policy gradient."""

    upstream: ClassVar[Literal["per-step"]] = "per-step"
    endpoint: ClassVar[str] = "none"
    exact: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2505.05470"
    title: ClassVar[str] = "Exact policy gradient"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "none: each step has an upstream of its own",
        "active": "every trained step",
        "weights": "its own step",
        "coupling": "0",
    }

    @hookimpl
    def build_surrogate(self, rollout: Rollout) -> Surrogate:
        """One group a trained step."""
        steps = rollout.batch.trained_steps
        return Surrogate(alone(steps, [0.0] * len(steps)), None, None, rollout)
