"""The estimator `jagg` (arXiv 2607.17572)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Generator, Tensor

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import at_least, in_range
from headwater_jagg import basis as bases
from headwater_jagg.measurement import Part, measure, work_of
from headwater_jagg.memory import Memory

if TYPE_CHECKING:
    from headwater.composition import Run

EVERY = 20
THRESHOLD = 0.9
METRICS = {
    "routed_groups": "groups whose gradient goes through their nodes",
    "recomputed": '`middle = "cached"`: micro-batches whose velocities were computed anew',
    "cosine_group_K": '`routed = "auto"`: cosine of the gradient of group K to the exact one',
    "norm_ratio_group_K": '`routed = "auto"`: its norm over that of the exact one',
    "cosine_middle_K": '`basis = "calibrated"`: the same cosine, of the steps that are no node',
    "norm_ratio_middle_K": '`basis = "calibrated"`: the same ratio, of the steps that are no node',
}


def _check_routed(_: object, __: object, value: float | str) -> None:
    if value != "auto" and (isinstance(value, str) or not 0 <= value <= 1):
        raise ValueError(f'expected a number from 0 to 1 or "auto", got {value!r}')


@attrs.define(eq=False)
class _Work:
    """One surrogate on its way through the engine."""

    backbone: Any
    rollout: Rollout
    groups: frozenset[Group]
    parts: list[Part]
    """Groups to be measured; none in most updates."""
    metrics: dict[str, float]
    begun: bool = False
    upstream: dict[int, Tensor] = attrs.field(factory=dict)
    """Step: (B, *latent), of the groups to be measured."""

    def take(self, group: Group, upstream: Tensor) -> list[Part]:
        """Note the upstream of a group's steps. Returns: the parts that are complete now.

        The engine goes from image to noise, so a part is complete with its first step.
        """
        asked = {step for part in self.parts for step in part.steps}
        pairs = zip(group.steps, upstream, strict=True)
        self.upstream.update({step: s for step, s in pairs if step in asked})
        return [part for part in self.parts if part.steps[0] == group.steps[0]]


@attrs.define(eq=False)
class Jagg:
    """The policy gradient of W steps through two of them (JAGG, arXiv 2607.17572).

    A step's Jacobian is interpolated between those of its group's nodes. Exact if the velocity is
    linear in (x, t) and the states lie on the chord between the nodes; noise leads off it, and
    late groups lose most. Needs a per-step upstream. A `basis = "calibrated"` and `routed =
    "auto"` are beyond the paper, which takes W and the routed fraction by hand.
    """

    upstream: ClassVar[Literal["per-step"]] = "per-step"
    endpoint: ClassVar[str] = "none"
    paper: ClassVar[str] = "arXiv 2607.17572"
    title: ClassVar[str] = "JAGG"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "none: each step has an upstream of its own",
        "active": "the `nodes` of each group of `window` trained steps",
        "weights": "interpolated in t between the nodes (`basis`)",
        "coupling": "0",
    }
    metrics: ClassVar[Mapping[str, str]] = METRICS

    window: int = attrs.field(default=4, validator=at_least(1))
    """W, steps of a group. Trained steps are cut from the noisy end; the last may be shorter."""
    routed: float | Literal["auto"] = attrs.field(default=0.6, validator=_check_routed)
    """Fraction of the groups, from the noisy end, that JAGG carries; the others are exact.
    "auto": those whose measured cosine to the exact gradient is above `threshold`."""
    interpolate: Literal["linear", "none", "sum"] = "linear"
    """Ablations: "none" drops the steps that are no node, "sum" gives all of them to each node."""
    middle: Literal["recompute", "cached"] = "recompute"
    """Velocities that the upstream is formed from. "cached": the rollout's, while the weights are
    those that made it; afterwards they are recomputed, and `recomputed` counts it."""
    nodes: tuple[int, ...] = (0, -1)
    """Positions in a group that are evaluated with gradient; negative ones count from its end."""
    basis: Literal["linear", "nearest", "calibrated"] = "linear"
    """How a step is spread over the nodes: linear in t, whole to the nearest, or by a least
    squares fit to measured gradients. Steps never fitted together use "linear"."""
    calibrate_every: int = attrs.field(default=EVERY, validator=at_least(1))
    """Applied updates between two measurements, for "calibrated" and "auto"."""
    threshold: float = attrs.field(default=THRESHOLD, validator=in_range(-1, 1))
    """Cosine above which "auto" routes a group. A group is exact until it is measured."""
    _memory: Memory = attrs.field(init=False, factory=Memory, repr=False)
    _work: _Work | None = attrs.field(init=False, default=None, repr=False)
    _metrics: dict[str, float] = attrs.field(init=False, factory=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        """Settings that contradict each other, or that nothing would read."""
        bases.resolved(self.nodes, self.window)
        if self.interpolate != "linear" and self.basis != "linear":
            raise ValueError(
                f'basis = "{self.basis}" is not read under interpolate = "{self.interpolate}"'
            )
        if not self._measures:
            for name, default in (("calibrate_every", EVERY), ("threshold", THRESHOLD)):
                if getattr(self, name) != default:
                    raise ValueError(f'{name} is read only with "auto" or "calibrated"')
        if self.threshold != THRESHOLD and self.routed != "auto":
            raise ValueError('threshold is read only with routed = "auto"')

    @property
    def _measures(self) -> bool:
        return self.routed == "auto" or self.basis == "calibrated"

    def problems(self, run: Run) -> list[str]:
        """None; warns where nothing is saved, and where a fit would not be used again."""
        from headwater.geometry import schedule_of

        try:
            trained = [schedule_of(run, step).trained for step in range(min(2, run.file.steps))]
        except ValueError:
            return []  # no schedule at all: core says why
        size = min(self.window, len(trained[0]))
        if size <= len(self.nodes) or self.routed == 0:
            warnings.warn(
                f"jagg saves nothing: {size} steps a group, {len(self.nodes)} nodes, routed = "
                f"{self.routed!r}; every step is evaluated with gradient",
                stacklevel=2,
            )
        if self.basis == "calibrated" and trained[0] != trained[-1]:
            warnings.warn(
                "jagg keeps a calibrated basis for the steps it was fitted to, and the trained "
                "steps change from update to update: other steps use the linear basis",
                stacklevel=2,
            )
        return []

    @hookimpl
    def build_surrogate(self, backbone: Any, rollout: Rollout, generator: Generator) -> Surrogate:
        """Groups of the trained steps: routed ones by their nodes, the others step by step."""
        version = rollout.batch.policy_version
        self._memory.arrive(version)
        cuts = bases.cut(rollout.batch.trained_steps, self.window)
        routed = self._routed(len(cuts))
        parts = [self.part(i, steps, rollout) for i, steps in enumerate(cuts)]
        groups: list[Group] = []
        for part in parts:
            groups += [part.grouped] if part.position in routed else _alone(part.steps)
        cached = self.middle == "cached" and rollout.current and rollout.velocities is not None
        measured = self._to_measure(parts, routed, version, generator.initial_seed())
        metrics = {"routed_groups": float(len(routed))}
        if self.middle == "cached":
            metrics["recomputed"] = float(not cached)
        self._work = _Work(backbone, rollout, frozenset(groups), measured, metrics)
        works = [work_of(part, **self._kind) for part in measured]
        return Surrogate(
            groups=tuple(groups),
            endpoint=None,
            sample_weights=None,
            rollout=rollout,
            cached_velocities=cached,
            measurements=(sum(w[0] for w in works), sum(w[1] for w in works)),
        )

    @hookimpl
    def aggregate(self, group: Group, upstream: Tensor) -> Tensor:
        """Phi s; in an update that is measured, also the gradients of each group."""
        work = self._work
        if work is not None and group in work.groups:
            self._begin(work)
            for part in work.take(group, upstream):
                self._measure(work, part)
        return bases.composites(group.basis, upstream)

    def measured(self) -> Mapping[str, float]:
        """Since the last call: `routed_groups`; `recomputed`, micro-batches whose velocities were
        not taken from the cache though asked for; and of measured groups k, counted from the noisy
        end, `cosine_group_k` and `norm_ratio_group_k` of the gradient by the basis in force to the
        exact one ("auto"), or the same of the middle steps' part (`cosine_middle_k`, ...)."""
        found, self._metrics = self._metrics, {}
        return found

    def state(self) -> dict[str, Any]:
        """What later updates need of earlier ones, as JSON takes it."""
        return self._memory.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._memory.restore(state)

    @property
    def _kind(self) -> dict[str, bool]:
        return {"fit": self.basis == "calibrated", "whole": self.routed == "auto"}

    def _routed(self, groups: int) -> frozenset[int]:
        """Positions of the routed groups."""
        if self.routed == "auto":
            known = self._memory.now.cosines
            return frozenset(i for i in range(groups) if known.get(i, -math.inf) > self.threshold)
        return frozenset(range(bases.routed_count(groups, self.routed)))

    def _to_measure(
        self, parts: list[Part], routed: frozenset[int], version: int, seed: int
    ) -> list[Part]:
        """Groups that a basis is used on, or may be; none where no measurement is due."""
        if not self._measures or not self._memory.due(version, seed, self.calibrate_every):
            return []
        used = range(len(parts)) if self.routed == "auto" else routed
        return [part for part in parts if part.middle and part.position in used]

    def part(self, position: int, steps: tuple[int, ...], rollout: Rollout) -> Part:
        """A group with its nodes and the basis in force; all of a short one's steps are nodes."""
        size = len(steps)
        nodes = bases.node_positions(self.nodes, self.window, size)
        if len(nodes) == size:
            return Part(position, steps, nodes, torch.eye(size, dtype=torch.float64))
        if self.interpolate == "none":
            return Part(position, steps, nodes, bases.dropped_basis(size, nodes))
        if self.interpolate == "sum":
            return Part(position, steps, nodes, bases.summed_basis(size, nodes))
        times = rollout.sigmas[list(steps)]
        if self.basis == "nearest":
            return Part(position, steps, nodes, bases.nearest_basis(times, nodes))
        fitted = self._memory.now.bases.get(steps) if self.basis == "calibrated" else None
        basis = bases.linear_basis(times, nodes) if fitted is None else fitted
        return Part(position, steps, nodes, basis)

    def _begin(self, work: _Work) -> None:
        """Count a surrogate once, and only where the engine runs it: a plan does not."""
        if work.begun:
            return
        work.begun = True
        before = self._metrics.get("recomputed", 0.0)
        self._metrics.update(work.metrics)
        if "recomputed" in work.metrics:
            self._metrics["recomputed"] += before
        if work.parts:
            self._memory.close(work.rollout.batch.policy_version)

    def _measure(self, work: _Work, part: Part) -> None:
        """Fit and judge one group, for later updates."""
        s_SB = torch.stack([work.upstream.pop(step) for step in part.steps])
        found = measure(work.backbone, work.rollout, part, s_SB, **self._kind)
        cosine, _, ratio = found.likeness
        if self.basis == "calibrated":
            fitted = bases.fit_basis(part.basis, part.nodes, found.KK, found.Kt)
            self._memory.new.bases[part.steps] = fitted
        if not math.isfinite(cosine):
            return  # no upstream: what was known stays in force
        if self.routed == "auto":
            self._memory.new.cosines[part.position] = cosine
        scope = "group" if self.routed == "auto" else "middle"
        self._metrics[f"cosine_{scope}_{part.position}"] = cosine
        self._metrics[f"norm_ratio_{scope}_{part.position}"] = ratio


def _alone(steps: tuple[int, ...]) -> list[Group]:
    """Every step a group of its own."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return [Group((i,), (i,), one) for i in steps]
