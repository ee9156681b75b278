"""One optimizer step, and the state it changes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import torch

from headwater.geometry import Draw, draws_of, indices_seed, micro_batches
from headwater.memory import peak_memory
from headwater.optimization import Average, GradientCheck, Guard, learning_rate
from headwater.randomness import generator_of
from headwater.stage import Outcome, Stage


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
        self.parameters = dict(stage.backbone.trainable())
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=table.lr,
            betas=table.betas,
            weight_decay=table.weight_decay,
        )
        self.average = Average(self.parameters, table.ema)
        self.guard = Guard(stage.run.file.guard)
        self.check = GradientCheck(self.parameters)
        self.policy_version = 0
        self.peak_memory = 0
        """Bytes of the largest measured backward stage."""

    def step(self, index: int, *, measure_memory: bool = False) -> StepResult:
        """Optimizer step `index`, from 0: rollout, score, backward, clip, update."""
        began = time.perf_counter()
        file = self.stage.run.file
        self.optimizer.zero_grad(set_to_none=False)
        outcomes, forwards, backwards = self._gradient(index, measure_memory=measure_memory)
        norm = self._norm()
        rate = learning_rate(file.optimizer, index, file.steps)
        skipped = self._update(norm, rate, outcomes)
        metrics = {
            **_averages(outcomes),
            "grad_norm": norm,
            "lr": rate,
            "skipped": float(bool(skipped)),
            "samples_dropped": float(sum(outcome.dropped for _, outcome in outcomes)),
            "policy_version": float(self.policy_version),
            "forwards": float(forwards),
            "backwards": float(backwards),
            "seconds": time.perf_counter() - began,
        }
        return StepResult(metrics, skipped, forwards, backwards)

    def _gradient(
        self, index: int, *, measure_memory: bool
    ) -> tuple[list[tuple[int, Outcome]], int, int]:
        """All micro-batches of a step: (samples, outcome) each; forwards; backwards."""
        file = self.stage.run.file
        draws = draws_of(file, self.stage.run.prompts, index)
        before = self.stage.backbone.forwards
        outcomes: list[tuple[int, Outcome]] = []
        for batch in micro_batches(draws, file.prompts.micro_batch):
            measure = measure_memory and not outcomes
            outcome = self._micro_batch(batch, index, len(draws), measure=measure)
            outcomes.append((len(batch), outcome))
        backwards = sum(o.diagnostics.backwards * o.endpoint_samples for _, o in outcomes)
        return outcomes, self.stage.backbone.forwards - before, backwards

    def _micro_batch(
        self, batch: Sequence[Draw], index: int, samples: int, *, measure: bool
    ) -> Outcome:
        rollout = self.stage.sample(batch, self.policy_version)
        seed = indices_seed(self.stage.run.file, index, batch[0].part)

        def work() -> Outcome:
            return self.stage.backward(rollout, generator_of(*seed), samples)

        if not measure:
            return work()
        outcome, peak = peak_memory(work)
        self.peak_memory = max(self.peak_memory, peak)
        return outcome

    def _norm(self) -> float:
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads))

    def _update(self, norm: float, rate: float, outcomes: list[tuple[int, Outcome]]) -> str:
        """Clip and step, unless the guard skips it. Returns why it did."""
        zero = all(_is_zero(outcome) for _, outcome in outcomes)
        self.check.after_backward(upstream_is_zero=zero)
        reason = self.guard.reason_to_skip(norm)
        if reason:
            return reason
        limit = self.stage.run.file.optimizer.max_grad_norm
        torch.nn.utils.clip_grads_with_norm_(
            list(self.parameters.values()), limit, torch.tensor(norm)
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.average.update()
        self.policy_version += 1
        if not zero:
            self.check.after_update()
        return ""


def _is_zero(outcome: Outcome) -> bool:
    gradient = outcome.credit.endpoint_gradient
    return gradient is None or not bool(gradient.any())


def _averages(outcomes: list[tuple[int, Outcome]]) -> dict[str, float]:
    """Means over the samples of a step."""
    out: dict[str, float] = {"loss": sum(outcome.credit.loss for _, outcome in outcomes)}
    samples = sum(size for size, _ in outcomes)
    scored = sum(outcome.endpoint_samples for _, outcome in outcomes)
    for size, outcome in outcomes:
        for key, value in outcome.rewards.items():
            _add(out, f"reward/{key}", float(value.sum()) / samples)
        for key, value in outcome.endpoint_rewards.items():
            _add(out, f"endpoint_reward/{key}", float(value.sum()) / scored)
        for key, number in outcome.diagnostics.values.items():
            _add(out, f"estimator/{key}", number * size / samples)
    return out


def _add(out: dict[str, float], name: str, value: float) -> None:
    out[name] = out.get(name, 0.0) + value
