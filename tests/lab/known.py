"""Estimators that give a known multiple, or a known rotation, of the exact gradient."""

import math
from typing import ClassVar

import attrs
import torch

from headwater import hookimpl
from headwater.engine import evaluate
from headwater.types import Group, Surrogate

ENTRY_POINTS = {
    "estimator scaled": "Scaled",
    "estimator noisy": "Noisy",
    "estimator rotated": "Rotated",
}


def exact_groups(rollout):
    return tuple(Group((i,), (i,), torch.ones(1, 1), 1.0) for i in range(rollout.steps))


def weighted(rollout, factor):
    end = rollout.state(rollout.steps)
    weights = torch.full((len(end),), float(factor), dtype=end.dtype)
    return Surrogate(exact_groups(rollout), end, weights, rollout, {"factor": float(factor)})


@attrs.frozen(eq=False)
class Scaled:
    """The exact gradient times a factor."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    factor: float = 1.0

    @hookimpl
    def build_surrogate(self, rollout):
        return weighted(rollout, self.factor)


@attrs.frozen(eq=False)
class Noisy:
    """The exact gradient times 1 + spread or 1 - spread."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    spread: float = 1.0

    @hookimpl
    def build_surrogate(self, rollout, generator):
        sign = 2 * int(torch.randint(2, (), generator=generator)) - 1
        return weighted(rollout, 1 + self.spread * sign)


@attrs.define(eq=False)
class Rotated:
    """The exact gradient with neighbouring numbers of every parameter turned by an angle.

    It brings its own `backward`.
    """

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    degrees: float = 60.0
    _backbone: object = attrs.field(init=False, default=None)

    @hookimpl
    def build_surrogate(self, backbone, rollout):
        self._backbone = backbone
        return weighted(rollout, 1.0)

    @hookimpl
    def backward(self, group, rollout, cotangents, carried):
        (step,) = group.active
        x, v = evaluate(self._backbone, (step,), rollout, (step,), "stream")[step]
        parameters = list(self._backbone.trainable().values())
        *found, at_input = torch.autograd.grad(v, [*parameters, x], cotangents[0].to(v.dtype))
        angle = math.radians(self.degrees)
        for parameter, gradient in zip(parameters, found, strict=True):
            a, b = gradient.flatten()[0::2], gradient.flatten()[1::2]
            turned = torch.stack(
                [
                    a * math.cos(angle) - b * math.sin(angle),
                    a * math.sin(angle) + b * math.cos(angle),
                ]
            )
            turned = turned.T.reshape(gradient.shape)
            parameter.grad = turned if parameter.grad is None else parameter.grad + turned
        return carried + at_input
