"""One optimizer step, and the state it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import attrs
import torch

from headwater import processes
from headwater.collection import Collected, collect, kept, skipped_groups
from headwater.errors import HeadwaterError
from headwater.faults import blamed
from headwater.geometry import (
    Schedule,
    indices_seed,
    micro_batches,
    position_of,
    rollout_draws,
    schedule_of,
    share_of,
)
from headwater.gradient_shares import shares
from headwater.memory import peak_memory
from headwater.optimization import (
    Average,
    GradientCheck,
    Guard,
    learning_rate,
)
from headwater.randomness import generator_of
from headwater.stage import Outcome, Stage
from headwater.state import Volatile, volatile
from headwater.update import open_update

Work = tuple[int, Callable[[], Outcome], bool]
"""Samples of a micro-batch, the call that sends it backward, and whether it is the last one."""


@attrs.frozen(eq=False)
class StepResult:
    """What an optimizer step reports."""

    metrics: dict[str, float]
    skipped: str
    """Why the update was skipped; empty where it was applied."""
    forwards: int
    """Network forwards, summed over samples, rollout included."""
    backwards: int


class Trainer:
    """Weights, optimizer, moving average and guards of a run."""

    def __init__(self, stage: Stage) -> None:
        table = stage.run.file.optimizer
        self.stage = stage
        with blamed(stage.run.backbone, "trainable"):
            self.parameters = dict(stage.backbone.trainable())
            if not self.parameters:
                raise HeadwaterError("the backbone has nothing to train")
        self.update = open_update(self.parameters, table)
        self.average = Average(self.parameters, table.ema)
        self.guard = Guard(stage.run.file.guard)
        self.check = GradientCheck(self.parameters)
        self.policy_version = 0
        self.peak_memory = 0
        """Bytes of the largest measured backward stage."""
        self.collected: list[Collected] = []
        self.collected_for = -1
        """Which rollout `collected` is, for a per-step upstream."""
        self.skipped_groups = 0
        """Groups of the last update without a sample to train on."""
        self.before = self._copied()
        """The weights before training, where the algorithm compares with a copy of them."""
        self.before_step: Volatile | None = None
        """Within a step: what plugins remembered when it began."""
        self.updating = False
        """The weights may be those of half an update."""

    def step(self, index: int, *, measure_memory: bool = False) -> StepResult:
        """Optimizer step `index`, from 0: rollout, score, backward, clip, update."""
        began = time.perf_counter()
        file = self.stage.run.file
        self.before_step = volatile(self.stage.run)
        self.update.begin()
        outcomes, forwards, backwards = self._gradient(index, measure_memory=measure_memory)
        zero = processes.everywhere(all(outcome.silent for _, outcome in outcomes))
        self.check.after_backward(upstream_is_zero=zero)
        self.update.reduce()
        norm = self.update.norm()
        own = {**_averages(outcomes), **self._measured(), **_squares(outcomes)}
        means = _rooted(processes.mean_metrics(own))
        rate = learning_rate(file.optimizer, index, file.steps)
        skipped = self._update(norm, rate, upstream_is_zero=zero)
        dropped = sum(outcome.dropped for _, outcome in outcomes)
        forwards, backwards, dropped = (
            sum(processes.gathered(count)) for count in (forwards, backwards, dropped)
        )
        metrics = {
            **means,
            "grad_norm": norm,
            "lr": rate,
            "skipped": float(bool(skipped)),
            "samples_dropped": float(dropped),
            "groups_skipped": float(self.skipped_groups),
            "policy_version": float(self.policy_version),
            "forwards": float(forwards),
            "backwards": float(backwards),
            "seconds": time.perf_counter() - began,
        }
        self.before_step = None
        return StepResult(metrics, skipped, forwards, backwards)

    def _gradient(
        self, index: int, *, measure_memory: bool
    ) -> tuple[list[tuple[int, Outcome]], int, int]:
        """All micro-batches of a step: (samples, outcome) each; forwards; backwards."""
        before = self.stage.backbone.forwards
        per_step = self.stage.run.algorithm.plugin.upstream == "per-step"
        works = self._per_step(index) if per_step else self._endpoint(index)
        outcomes: list[tuple[int, Outcome]] = []
        for samples, work, last in works:
            self.stage.backbone.last_work = last
            if measure_memory and not outcomes:
                outcome, peak = peak_memory(work)
                self.peak_memory = max(self.peak_memory, peak)
            else:
                outcome = work()
            outcomes.append((samples, outcome))
        backwards = sum(o.diagnostics.backwards * o.surrogate_samples for _, o in outcomes)
        return outcomes, self.stage.backbone.forwards - before, backwards

    def _endpoint(self, index: int) -> Iterator[Work]:
        """Each micro-batch is drawn, scored and sent backward before the next."""
        file = self.stage.run.file
        draws = rollout_draws(self.stage.run, index)
        own = share_of(draws, processes.rank(), processes.world())
        batches = micro_batches(own, file.prompts.micro_batch)
        for batch in batches:
            rollout = self.stage.sample(batch, self.policy_version)
            generator = generator_of(*indices_seed(file, index, batch[0].part))
            work = partial(self.stage.backward, rollout, generator, len(own))
            yield len(batch), work, batch is batches[-1]

    def _per_step(self, index: int) -> Iterator[Work]:
        """The rollout is drawn and scored whole; an update uses its share of the micro-batches."""
        run = self.stage.run
        position, schedule = position_of(run.file, index), schedule_of(run, index)
        samples = run.file.prompts.per_step * run.file.prompts.group
        if self.collected_for != position.rollout:
            draws = rollout_draws(run, position.rollout)
            self.collected = collect(self.stage, draws, self.policy_version, schedule, samples)
            self.collected_for = position.rollout
        draws_a_share = run.file.estimator.core["draws"]
        share = [c for c in self.collected if c.part // draws_a_share == position.share]
        own = samples // processes.world()
        assert sum(len(c.rollout.batch) for c in share) == own
        self.skipped_groups = skipped_groups(share)
        count = own * len(schedule.trained)
        for item in share:
            work = partial(self._reinforce, item, index, schedule, count)
            yield len(item.rollout.batch), work, item is share[-1]

    def _reinforce(self, item: Collected, index: int, schedule: Schedule, count: int) -> Outcome:
        """One micro-batch of a per-step update."""
        run = self.stage.run
        batch = attrs.evolve(
            item.rollout.batch,
            trained_steps=schedule.trained,
            policy_version=self.policy_version,
        )
        device = next(iter(self.parameters.values())).device
        rollout = attrs.evolve(item.rollout.to(device), batch=batch)
        if getattr(run.algorithm.plugin, "reference_model", "none") != "none":
            rollout = self.stage.with_references(rollout, self.before)
            item.rollout = kept(rollout, run.file.rollout.keep)
        credit = attrs.evolve(item.credit, count=count)
        generator = generator_of(*indices_seed(run.file, index, item.part))
        diagnostics = self.stage.reinforce(rollout, generator, credit)
        return Outcome(item.rewards, {}, credit, diagnostics, item.dropped)

    def _copied(self) -> dict[str, torch.Tensor]:
        if getattr(self.stage.run.algorithm.plugin, "reference_model", "none") != "copy":
            return {}
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def _measured(self) -> dict[str, float]:
        """What the plugins measured in this step, under their kind, a reward's under its key."""
        run, out = self.stage.run, {}
        rewards = ((f"reward/{key}", named) for key, named in run.rewards.items())
        every = (("algorithm", run.algorithm), ("estimator", run.estimator), *rewards)
        for kind, named in every:
            if hasattr(named.plugin, "measured"):
                found = named.plugin.measured()
                out.update({f"{kind}/{key}": float(value) for key, value in found.items()})
        return out

    def _update(self, norm: float, rate: float, *, upstream_is_zero: bool) -> str:
        """Clip and step, unless the guard skips it. Returns why it did."""
        reason = self.guard.reason_to_skip(norm)
        if reason:
            return reason
        self.updating = True
        self.update.apply(norm, rate)
        self.average.update()
        self.policy_version += 1
        self.publish()
        if not upstream_is_zero:
            self.check.after_update()
        self.updating = False
        return ""

    def publish(self) -> None:
        """Tell a backbone that samples elsewhere which weights hold now."""
        if hasattr(self.stage.run.backbone.plugin, "publish"):
            self.stage.run.backbone.plugin.publish(self.policy_version)


def _averages(outcomes: list[tuple[int, Outcome]]) -> dict[str, float]:
    """Means over the samples of a step."""
    out: dict[str, float] = {}
    if any(outcome.credit.endpoint_gradient is not None for _, outcome in outcomes):
        out["loss"] = sum(outcome.credit.loss for _, outcome in outcomes)
    samples = sum(size for size, _ in outcomes)
    scored = sum(outcome.surrogate_samples for _, outcome in outcomes)
    for size, outcome in outcomes:
        for key, value in outcome.rewards.items():
            _add(out, f"reward/{key}", float(value.sum()) / samples)
        for key, value in outcome.endpoint_rewards.items():
            _add(out, f"endpoint_reward/{key}", float(value.sum()) / scored)
        for key, number in outcome.diagnostics.values.items():
            _add(out, f"estimator/{key}", number * size / samples)
    parts = shares(outcome.gradient_sizes for _, outcome in outcomes)
    return out | {f"algorithm/share/{key}": share for key, share in parts.items()}


_NORM = "cotangent_norm/"
"""Begins the metrics of what goes backward through the network, by denoising step."""


def _squares(outcomes: list[tuple[int, Outcome]]) -> dict[str, float]:
    """Squared norm of the cotangents of each active step over this process's samples."""
    out: dict[str, float] = {}
    for _, outcome in outcomes:
        for step, square in outcome.diagnostics.squares.items():
            _add(out, f"{_NORM}{step}", square)
    return dict(sorted(out.items(), key=lambda item: int(item[0].removeprefix(_NORM))))


def _rooted(means: dict[str, float]) -> dict[str, float]:
    """Norms for means over the processes of squares; each one's loss counts 1 / world of it."""
    world = processes.world()
    return {n: (v / world) ** 0.5 if n.startswith(_NORM) else v for n, v in means.items()}


def _add(out: dict[str, float], name: str, value: float) -> None:
    out[name] = out.get(name, 0.0) + value
