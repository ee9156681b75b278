"""The engine with somebody looking on: what each active step adds to a gradient.

Active steps go backward one by one, as the engine's mode "stream" does anyway. The part of each
lands in an empty `.grad`, is compared with the reference's own part of that step, and is added
to the total. Clocks and counters do not see it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.counting import CountedBackbone
from headwater.engine import Engine, evaluate
from headwater.types import Group, Rollout
from headwater_lab.gradients import Trained


@attrs.frozen(eq=False)
class Part:
    """What some steps of one micro-batch add to a gradient, beside the reference's part."""

    steps: tuple[int, ...]
    """One active step, or all steps of a group."""
    norm: float
    """Of the gradient of the micro-batch's mean loss."""
    norm_ratio: float = math.nan
    cosine: float = math.nan
    state_gradient: float = math.nan
    """Mean over samples of the norm of the gradient at the end of the step; reference only."""


@attrs.define(eq=False)
class Watch:
    """Gradient and parts of one pass over the micro-batches of a rollout."""

    trained: Trained
    backbone: CountedBackbone
    references: dict[tuple[int, int], Tensor] = attrs.field(factory=dict)
    """(micro-batch, step): the reference's cotangent, (B, *latent)."""
    keeping: bool = False
    """This pass is the reference's: its cotangents are kept."""
    total: list[Tensor] = attrs.field(init=False)
    parts: list[Part] = attrs.field(factory=list)
    groups: list[Part] = attrs.field(factory=list)
    spent: float = 0.0
    """Seconds of looking on."""
    _number: int = 0
    _rollout: Rollout | None = None
    _scale: float = 1.0
    _drawn: Callable[[], bool] = lambda: False

    def __attrs_post_init__(self) -> None:
        self.total = self.trained.buffer()

    def begin(self) -> None:
        """A new pass."""
        for tensor in self.total:
            tensor.zero_()
        self.trained.clear()
        self.parts, self.groups, self.spent = [], [], 0.0

    def enter(self, number: int, rollout: Rollout, samples: int, drawn: Callable[[], bool]) -> None:
        """The next micro-batch. samples: n of the loss. drawn: whether indices were drawn."""
        self._number, self._rollout, self._drawn = number, rollout, drawn
        self._scale = samples / len(rollout.batch)

    def take(self, step: int, rollout: Rollout, cotangent: Tensor, carried: Tensor | None) -> None:
        """The part of one active step lies in `.grad`: note it, and add it to the total."""
        began, grads = now(), self.trained.grads()
        norm = math.sqrt(float(self.trained.inner(grads, grads).sum())) * self._scale
        key = (self._number, step)
        if self.keeping:
            self.references[key] = cotangent.clone()
            state = math.nan if carried is None else _mean_norm(carried, self._scale)
            self.parts.append(Part((step,), norm, state_gradient=state))
        elif rollout is self._rollout and key in self.references:
            ratio, cosine = self._likeness(grads, [step], rollout)
            self.parts.append(Part((step,), norm, ratio, cosine))
        self.trained.move_to(self.total)
        self.spent += now() - began

    def wants_group(self, group: Group, rollout: Rollout) -> bool:
        """Groups are compared as wholes where they are the same in every rollout."""
        own = not self.keeping and rollout is self._rollout and len(group.steps) > 1
        known = all((self._number, step) in self.references for step in group.steps)
        return own and known and not self._drawn()

    def take_group(self, group: Group, rollout: Rollout, before: Sequence[Tensor]) -> None:
        """The whole group is in the total, which was `before` at its start."""
        began = now()
        part = [after - earlier for after, earlier in zip(self.total, before, strict=True)]
        norm = math.sqrt(float(self.trained.inner(part, part).sum())) * self._scale
        ratio, cosine = self._likeness(part, group.steps, rollout)
        self.groups.append(Part(group.steps, norm, ratio, cosine))
        self.spent += now() - began

    def finished(self) -> list[Tensor]:
        """The gradient of the pass; it is overwritten by the next."""
        self.trained.move_to(self.total)
        return self.total

    def _likeness(
        self, part: Sequence[Tensor], steps: Sequence[int], rollout: Rollout
    ) -> tuple[float, float]:
        """Norm ratio and cosine of a part to the reference's, over some steps."""
        samples = self.backbone.samples
        reference = self.trained.buffer()
        for step in steps:
            with torch.enable_grad():
                v = evaluate(self.backbone, (step,), rollout, (), "stream")[step][1]
            cotangent = self.references[self._number, step].to(v.dtype)
            found = torch.autograd.grad(
                v, self.trained.parameters, cotangent, allow_unused=True, materialize_grads=True
            )
            for sum_, value in zip(reference, found, strict=True):
                sum_.add_(value)
        self.backbone.samples = samples
        pp, rr, pr = (
            float(self.trained.inner(a, b).sum())
            for a, b in ((part, part), (reference, reference), (part, reference))
        )
        if rr == 0:
            return math.nan, math.nan
        return math.sqrt(pp / rr), pr / math.sqrt(pp * rr) if pp > 0 else math.nan


@attrs.frozen(eq=False)
class WatchedEngine:
    """Core's engine, watched. It stands in only where no plugin brings its own hooks."""

    engine: Engine
    watch: Watch

    @hookimpl
    def aggregate(self, group: Group, upstream: Tensor) -> Tensor:
        """As the engine's."""
        return self.engine.aggregate(group, upstream)

    @hookimpl
    def backward(
        self,
        group: Group,
        rollout: Rollout,
        cotangents: Tensor,
        carried: Tensor | None,
        kept: dict[int, tuple[Tensor, Tensor]],
    ) -> Tensor | None:
        """As the engine's, one active step at a time in mode "stream", else as a whole."""
        watch, run = self.watch, self.engine.backward
        wanted = watch.wants_group(group, rollout)
        before = [tensor.clone() for tensor in watch.total] if wanted else []
        end = carried
        if self.engine.mode != "stream" and len(group.active) > 1:
            carried = run(group, rollout, cotangents, carried, kept)
            watch.trained.move_to(watch.total)
        else:
            for row, step in enumerate(group.active):
                one = _alone(group, row)
                own = {step: kept[step]} if kept else {}
                c = cotangents[row : row + 1]
                carried = run(one, rollout, c, carried, own)
                watch.take(step, rollout, c[0], end)
        if wanted:
            watch.take_group(group, rollout, before)
        return carried


def _alone(group: Group, row: int) -> Group:
    """The same group with one of its active steps."""
    step = group.active[row]
    coupling = group.coupling if row == 0 else 0.0
    return Group(group.steps, (step,), group.basis[row : row + 1], coupling)


def _mean_norm(x: Tensor, scale: float) -> float:
    """Mean over samples of |x_b| B scale: the gradient of each sample's own loss."""
    norms = torch.linalg.vector_norm(x.flatten(1).double(), dim=1)
    return float(norms.sum()) * scale


def now() -> float:
    """Seconds, with the device's work done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
