"""One rollout: the reference's gradient, then every estimator's, draw by draw.

At most eight gradient-sized buffers are held: the reference, the mean over draws, the pass's total,
`.grad`, and four while the part of a step or group is compared. Their number grows with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater.collection import collect
from headwater.composition import Run
from headwater.engine import Engine
from headwater.faults import note_failures
from headwater.geometry import Draw, indices_seed, micro_batches, rollout_draws, schedule_of
from headwater.memory import peak_memory
from headwater.randomness import generator_of
from headwater.rollout import RolloutLoop
from headwater.stage import Stage
from headwater.types import Credit, Rollout
from headwater_lab.gradients import Gradient, Mean
from headwater_lab.watching import Part, Watch, WatchedEngine, now


@attrs.frozen(eq=False)
class Item:
    """One micro-batch of a cached rollout."""

    number: int
    rollout: Rollout
    credit: Credit | None
    """For a per-step upstream."""


@attrs.frozen(eq=False)
class Cached:
    """All micro-batches of one rollout: what every estimator is measured on."""

    number: int
    items: tuple[Item, ...]
    samples: int
    """Of all its micro-batches."""


@attrs.frozen(eq=False)
class Pass:
    """One gradient of a rollout, beside the gradient itself."""

    drawn: bool
    """Whether the estimator drew indices."""
    seconds: float
    forwards: float
    """Network forwards per sample; the rollout's own are not counted."""
    backwards: float
    diagnostics: Mapping[str, float]
    parts: Sequence[Part]
    groups: Sequence[Part]


@attrs.frozen(eq=False)
class Record:
    """Everything that one estimator's gradients on one rollout say; numbers only.

    With e_m the gradient of draw m of M, e their mean and g the reference. (K,) by block.
    """

    rollout: int
    gg: Tensor
    ee: Tensor
    """|e|^2, (K,)."""
    eg: Tensor
    """e . g, (K,)."""
    difference: Tensor
    """|e - g|^2, (K,)."""
    scatter: Tensor
    """sum_m |e_m - e|^2, (K,)."""
    draw_ee: tuple[float, ...]
    """|e_m|^2, (M,)."""
    draw_eg: tuple[float, ...]
    passes: tuple[Pass, ...]
    """(M,)"""


@attrs.define(eq=False)
class Probe:
    """An estimator on the shared stage, ready to be measured."""

    label: str
    stage: Stage
    watch: Watch
    watched: bool
    """Whether the parts of steps are looked at."""
    peak_memory: int = 0
    """Bytes of the first micro-batch's gradient, beyond what was there."""

    @classmethod
    def on(cls, label: str, shared: Stage, run: Run, watch: Watch, *, watched: bool) -> Probe:
        """From a composed run of the same file with this estimator."""
        file = attrs.evolve(shared.run.file, estimator=run.file.estimator)
        own = attrs.evolve(shared.run, file=file, estimator=run.estimator)
        engine: Any = Engine(shared.backbone, file.engine.mode)
        if watched:
            engine = WatchedEngine(engine, watch)
        return cls(label, _staged(shared, own, engine), watch, watched)

    @property
    def remembers(self) -> bool:
        """Whether earlier rollouts change what it does."""
        return hasattr(self.stage.run.estimator.plugin, "state")

    def gradient(self, cached: Cached, draw: int | None) -> tuple[list[Tensor], Pass]:
        """The gradient of a rollout's mean loss. Its tensors are overwritten by the next call.

        draw: None for the indices that the first optimizer step of the run would draw.
        """
        watch, backbone = self.watch, self.stage.backbone
        watch.begin()
        before, began = backbone.forwards, now()
        backwards, drawn = 0, False
        values: dict[str, float] = {}
        for item in cached.items:
            generator = self._generator(item, cached.number, draw)
            state = generator.get_state()
            moved = _Moved(generator, state)
            watch.enter(item.number, item.rollout, cached.samples, moved)
            each, samples = backpropagate(self.stage, item, generator, cached.samples)
            backwards += each.backwards * samples
            drawn |= moved()
            share = len(item.rollout.batch) / cached.samples
            for key, value in each.values.items():
                values[key] = values.get(key, 0.0) + share * value
        seconds = now() - began - watch.spent
        made = Pass(
            drawn=drawn,
            seconds=seconds,
            forwards=(backbone.forwards - before) / cached.samples,
            backwards=backwards / cached.samples,
            diagnostics=values,
            parts=tuple(watch.parts),
            groups=tuple(watch.groups),
        )
        return watch.finished(), made

    def measure_memory(self, cached: Cached) -> None:
        """Peak of one gradient of the first micro-batch, nobody looking on."""
        item, run = cached.items[0], self.stage.run
        plain = _staged(self.stage, run, Engine(self.stage.backbone, run.file.engine.mode))
        generator = self._generator(item, cached.number, 0)
        self.watch.trained.clear()
        _, self.peak_memory = peak_memory(
            lambda: backpropagate(plain, item, generator, cached.samples)
        )
        self.watch.trained.clear()

    def _generator(self, item: Item, rollout: int, draw: int | None) -> torch.Generator:
        """The same for every estimator: those that draw alike are compared on the same draws."""
        file = self.stage.run.file
        per_part = file.prompts.per_step // file.estimator.core["draws"]
        part = item.rollout.batch.group_ids[0] // per_part
        if draw is None:
            return generator_of(*indices_seed(file, 0, part))
        return generator_of(file.seed, "compare", rollout, draw, part)


@attrs.frozen(eq=False)
class _Moved:
    """Whether a generator has been drawn from."""

    generator: torch.Generator
    state: Tensor

    def __call__(self) -> bool:
        return not torch.equal(self.generator.get_state(), self.state)


def _staged(shared: Stage, run: Run, engine: Any) -> Stage:
    """A stage of the same loaded plugins with another estimator or engine."""
    manager = run.manager([RolloutLoop(), engine])
    note_failures(manager, run)
    return attrs.evolve(shared, run=run, manager=manager)


def backpropagate(
    stage: Stage, item: Item, generator: torch.Generator, samples: int
) -> tuple[Any, int]:
    """A micro-batch's share of the gradient, by the stages of training.

    Returns: the engine's diagnostics, and B', the samples of the surrogate.
    """
    if item.credit is None:
        outcome = stage.backward(item.rollout, generator, samples)
        return outcome.diagnostics, outcome.surrogate_samples
    return stage.reinforce(item.rollout, generator, item.credit), len(item.rollout.batch)


def cache(stage: Stage, number: int, version: int, parts: Sequence[int]) -> Cached:
    """Draw rollout `number`, and score it where the upstream is per step.

    parts: prompts that share an index draw, for every estimator; no micro-batch crosses one.
    """
    run = stage.run
    if hasattr(run.backbone.plugin, "publish"):
        run.backbone.plugin.publish(version)
    draws = _cut(rollout_draws(run, number), parts)
    if run.algorithm.plugin.upstream == "endpoint":
        batches = micro_batches(draws, run.file.prompts.micro_batch)
        rollouts = [stage.sample(batch, version) for batch in batches]
        found = [Item(i, rollout, None) for i, rollout in enumerate(rollouts)]
        return Cached(number, tuple(found), len(draws))
    updates, epochs = (run.file.algorithm.core[key] for key in ("updates", "epochs"))
    schedule = schedule_of(run, number * updates * epochs)
    copied = _copied(stage)
    found = []
    for item in collect(stage, draws, version, schedule, len(draws)):
        rollout = item.rollout
        if getattr(run.algorithm.plugin, "reference_model", "none") != "none":
            rollout = stage.with_references(rollout, copied)
        credit = attrs.evolve(item.credit, count=len(draws) * len(schedule.trained))
        found.append(Item(len(found), rollout, credit))
    return Cached(number, tuple(found), len(draws))


def _cut(draws: Sequence[Draw], parts: Sequence[int]) -> list[Draw]:
    """The same draws, a new part wherever any estimator begins one."""
    keys = [tuple(draw.group // size for size in parts) for draw in draws]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [attrs.evolve(d, part=order[key]) for d, key in zip(draws, keys, strict=True)]


def _copied(stage: Stage) -> dict[str, Tensor]:
    if getattr(stage.run.algorithm.plugin, "reference_model", "none") != "copy":
        return {}
    return {name: p.detach().clone() for name, p in stage.backbone.trainable().items()}


def measure(
    probe: Probe, cached: Cached, reference: Gradient, draws: int, told: Callable[[int], None]
) -> Record:
    """An estimator's gradients on one rollout, at most `draws` of them.

    One that draws no indices is measured once: it would give the same again. told: called after
    every gradient.
    """
    trained = probe.watch.trained
    mean = Mean(trained)
    passes: list[Pass] = []
    ee: list[float] = []
    eg: list[float] = []
    for draw in range(draws):
        gradient, made = probe.gradient(cached, draw)
        passes.append(made)
        ee.append(float(trained.inner(gradient, gradient).sum()))
        eg.append(float(trained.inner(gradient, reference).sum()))
        mean.add(gradient)
        told(draw + 1)
        if not made.drawn:
            break
    return Record(
        rollout=cached.number,
        gg=trained.inner(reference, reference),
        ee=trained.inner(mean.mean, mean.mean),
        eg=trained.inner(mean.mean, reference),
        difference=trained.distance(mean.mean, reference),
        scatter=mean.scatter if passes[0].drawn else torch.zeros_like(mean.scatter),
        draw_ee=tuple(ee),
        draw_eg=tuple(eg),
        passes=tuple(passes),
    )


def finite(values: Sequence[float]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if math.isfinite(value)]
