"""Seconds of a run, from a few of its optimizer steps, done in memory.

Rollout and engine scale with the network evaluations of the whole run, which `plan` counts; a
backward counts as two forwards. Rewards scale with the rollouts or steps that are scored, the
evaluation with its samples. Checkpoints and pictures are not measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from headwater.composition import Named, Run
from headwater.counting import CountedBackbone
from headwater.engine import Engine
from headwater.errors import InputError
from headwater.evaluation import evaluate, evaluation_draws
from headwater.faults import note_failures
from headwater.geometry import Draw, Schedule
from headwater.gradient_shares import Sizes
from headwater.rollout import RolloutLoop
from headwater.stage import Outcome, Stage, open_stage
from headwater.tables import RunFile
from headwater.trainer import Trainer
from headwater.types import Batch, Credit, Diagnostics, Rollout, Surrogate

LEAST = 2
"""Optimizer steps that are measured at least."""


class Stopwatch:
    """Seconds by part; while an inner part runs, the outer one stands still."""

    def __init__(self) -> None:
        self.seconds = {"rollout": 0.0, "rewards": 0.0, "engine": 0.0, "optimizer": 0.0}
        self.rollout_forwards = 0
        """Network forwards of sampling, summed over samples."""
        self._within: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time within it is that part's."""
        self._mark()
        self._within.append(name)
        try:
            yield
        finally:
            self._mark()
            self._within.pop()

    def _mark(self) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = time.perf_counter()
        if self._within:
            self.seconds[self._within[-1]] += now - self._since
        self._since = now


class _TimedBackbone(CountedBackbone):
    """Its decoder is a part of the rewards."""

    def __init__(self, run: Run, watch: Stopwatch) -> None:
        file = run.file
        super().__init__(
            run.backbone.plugin, file.rollout.guidance, file.engine.precision, run.backbone
        )
        self.watch = watch

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, H, W)."""
        with self.watch.part("rewards"):
            return super().decode(latents)


@attrs.frozen(eq=False)
class TimedStage(Stage):
    """A stage whose calls are timed."""

    watch: Stopwatch

    def sample(
        self,
        draws: Sequence[Draw],
        policy_version: int,
        steps: int = 0,
        schedule: Schedule | None = None,
    ) -> Rollout:
        """As a stage's."""
        before = self.backbone.forwards
        with self.watch.part("rollout"):
            rollout: Rollout = Stage.sample(self, draws, policy_version, steps, schedule)
        self.watch.rollout_forwards += self.backbone.forwards - before
        return rollout

    def score(
        self, images: Tensor, batch: Batch, rewards: Mapping[str, Named], sizes: Sizes | None = None
    ) -> dict[str, Tensor]:
        """As a stage's."""
        with self.watch.part("rewards"):
            return Stage.score(self, images, batch, rewards, sizes)

    def with_references(self, rollout: Rollout, copy: Mapping[str, Tensor]) -> Rollout:
        """As a stage's."""
        with self.watch.part("engine"):
            found: Rollout = Stage.with_references(self, rollout, copy)
        return found

    def reinforce(self, rollout: Rollout, generator: Generator, credit: Credit) -> Diagnostics:
        """As a stage's."""
        with self.watch.part("engine"):
            return Stage.reinforce(self, rollout, generator, credit)

    def backward(self, rollout: Rollout, generator: Generator, samples: int) -> Outcome:
        """As a stage's; what is not scoring is the engine's and the surrogate's."""
        with self.watch.part("engine"):
            return Stage.backward(self, rollout, generator, samples)

    def _credit(
        self, values: dict[str, Tensor], surrogate: Surrogate, count: int
    ) -> tuple[Credit, int]:
        with self.watch.part("rewards"):  # the way back through rewards and decoder
            return Stage._credit(self, values, surrogate, count)


@attrs.frozen(eq=False)
class Measured:
    """What a few optimizer steps took."""

    device: str
    loading: float
    seconds: Mapping[str, float]
    """By part, over the measured steps."""
    steps: int
    rollouts: int
    rollout_forwards: int
    work: int
    """Forwards and twice the backwards of the other parts."""
    evaluation: float
    """Seconds a sample; 0 without an evaluation."""
    evaluated: int
    """Samples of the measured evaluation batch."""


def measure(run: Run) -> Measured:
    """Load the run, do a warm step, whole rollouts of at least two steps, and a batch to evaluate.

    Nothing is written. The run's plugins have been used afterwards. InputError where the launcher
    made several processes.
    """
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        raise InputError("--time", ["it measures one process; start it without a launcher"])
    watch, began = Stopwatch(), time.perf_counter()
    stage = _timed(run, str(state.device), watch)
    trainer, loading = Trainer(stage), time.perf_counter() - began
    trainer.step(0)
    core = run.file.algorithm.core
    cycle = core["updates"] * core["epochs"]
    rollouts = -(-LEAST // cycle)
    watch.seconds = dict.fromkeys(watch.seconds, 0.0)
    watch.rollout_forwards = forwards = backwards = 0
    for index in range(cycle, cycle + rollouts * cycle):
        with watch.part("optimizer"):
            result = trainer.step(index)
        forwards += result.forwards
        backwards += result.backwards
    work = forwards - watch.rollout_forwards + 2 * backwards
    seconds, drawn = dict(watch.seconds), watch.rollout_forwards
    each, evaluated = _evaluation(stage)
    steps = rollouts * cycle
    device = str(state.device)
    return Measured(device, loading, seconds, steps, rollouts, drawn, work, each, evaluated)


def _timed(run: Run, device: str, watch: Stopwatch) -> TimedStage:
    loaded = open_stage(run, device)
    backbone = _TimedBackbone(run, watch)
    manager = run.manager([RolloutLoop(), Engine(backbone, run.file.engine.mode)])
    note_failures(manager, run)
    return TimedStage(run, manager, loaded.callers, backbone, watch)


def _evaluation(stage: TimedStage) -> tuple[float, int]:
    """Seconds a sample of one evaluation batch, after one of a single sample; and its samples."""
    file = stage.run.file
    draws = evaluation_draws(stage.run)[: file.evaluation.batch or file.prompts.micro_batch]
    if not draws:
        return 0.0, 0
    evaluate(stage, draws[:1], 1)
    before = sum(stage.watch.seconds.values())
    with stage.watch.part("optimizer"):
        evaluate(stage, draws, len(draws))
    return (sum(stage.watch.seconds.values()) - before) / len(draws), len(draws)


def estimate(found: Mapping[str, Any], file: RunFile, measured: Measured) -> dict[str, Any]:
    """Seconds of the whole run by part, ready for JSON.

    found: what `plan` says of the same run.
    """
    spent, count = measured.seconds, file.steps

    def total(*kinds: str) -> float:
        return sum(float(found["per_step"][kind]["mean"]) * count for kind in kinds)

    others = total("reference_forwards", "surrogate_forwards", "engine_forwards")
    work = others + 2 * total("backwards")
    if measured.rollouts == measured.steps:
        scored = count / measured.steps
    else:
        cycle = measured.steps // measured.rollouts
        scored = -(-count // cycle) / measured.rollouts
    evaluation = found["evaluation"]
    parts = {
        "loading": measured.loading,
        "rollout": spent["rollout"] * total("rollout_forwards") / max(1, measured.rollout_forwards),
        "rewards": spent["rewards"] * scored,
        "engine": spent["engine"] * work / max(1, measured.work),
        "optimizer": spent["optimizer"] * count / measured.steps,
        "evaluation": measured.evaluation * evaluation["evaluations"] * evaluation["prompts"],
    }
    return {
        **parts,
        "total": sum(parts.values()),
        "device": measured.device,
        "measured": {
            "steps": measured.steps,
            "seconds_per_step": sum(spent.values()) / measured.steps,
            "evaluation_samples": measured.evaluated,
        },
    }
