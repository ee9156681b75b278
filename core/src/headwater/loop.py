"""The training loop: evaluate, then step, log, evaluate and checkpoint until done."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import tomli_w
from accelerate import PartialState

from headwater import checkpoints
from headwater.composition import Run, compose, observer_manager, resolved
from headwater.errors import GuardError, HeadwaterError, InputError
from headwater.evaluation import Evaluated, evaluate, evaluation_draws, picture
from headwater.geometry import optimizer_steps
from headwater.images import save_before_after
from headwater.memory import resident_memory
from headwater.progress import Progress, Quiet
from headwater.stage import open_stage
from headwater.statistics import compared, estimate, without_nan
from headwater.trainer import Trainer

EVALUATION_BATCH = 64


@attrs.frozen(eq=False)
class Summary:
    """What `summary.json` holds."""

    name: str
    steps: int
    """Optimizer steps done, skipped ones included."""
    seconds: float
    reward: Mapping[str, Any]
    """Weighted total of the trained rewards: before, after, difference, each mean, se, n."""
    rewards: Mapping[str, Any]
    """KEY: the same for each trained reward."""
    held_out: Mapping[str, Any]
    forwards: int
    """Network forwards of training, summed over samples."""
    backwards: int
    peak_memory_bytes: int
    """Of one backward stage; see docs."""
    resident_memory_bytes: int
    versions: Mapping[str, str]
    folder: str
    stopped: str = ""
    """Why the run ended early; empty where it is complete."""
    evaluated_at: int = 0
    """Optimizer step of the evaluation that `after` is from; 0: there is none after the first."""


def run(path: str | Path, overrides: Sequence[str] = (), out: str | Path | None = None) -> Summary:
    """Compose and train a run file, without a progress display."""
    return train(compose(path, overrides), out)


def train(run: Run, out: str | Path | None = None, progress: Progress | None = None) -> Summary:
    """Train a composed run into a new folder.

    Raises InputError where `out` already holds a run, GuardError where a guard stops it.
    """
    state = PartialState()
    if state.num_processes > 1:
        raise InputError("launch", [f"{state.num_processes} processes; this version runs in one"])
    folder = _new_folder(run, out)
    session = _Session(run, folder, Trainer(open_stage(run, str(state.device))), progress)
    with _interruptible(session):
        return session.run()


class _Session:
    """One run from its first evaluation to its summary."""

    def __init__(self, run: Run, folder: Path, trainer: Trainer, progress: Progress | None) -> None:
        self.composed, self.folder, self.trainer = run, folder, trainer
        self.progress = progress or Quiet()
        self.observers = observer_manager(run.observers).hook
        self.draws = evaluation_draws(run)
        self.best = -math.inf
        self.best_name = ""
        self.stop = ""
        self.evaluated_at = 0
        self.done = self.forwards = self.backwards = 0
        self.began = time.monotonic()

    def run(self) -> Summary:
        """The loop."""
        file = self.composed.file
        self.observers.start(run=self.composed, folder=self.folder)
        self.progress.start(self.composed, self.folder)
        try:
            first = last = self._evaluate(0)
            for index in range(file.steps):
                self._step(index)
                if self.done % file.evaluation.every == 0 or self.done == file.steps:
                    last = self._evaluate(self.done)
                if self.done % file.output.checkpoint_every == 0 or self.done == file.steps:
                    self._checkpoint()
                if self.stop:
                    return self._interrupted(first, last)
        except BaseException as error:
            error.add_note(f"at optimizer step {self.done + 1} of {file.steps}, {self.folder}")
            self._end("failed")
            raise
        assert self.done == optimizer_steps(file)
        return self._summary(first, last, "done")

    def _step(self, index: int) -> None:
        try:
            result = self.trainer.step(index, measure_memory=index == 1)
        except GuardError:
            if self.done:  # the updates before it were good
                self._checkpoint()
            raise
        self.done += 1
        self.forwards += result.forwards
        self.backwards += result.backwards
        self.observers.after_step(step=self.done, metrics=result.metrics)
        self.progress.after_step(self.done, result.metrics, result.skipped)
        try:
            self.trainer.guard.check(result.skipped)
        except GuardError:
            self._checkpoint()
            raise

    def _evaluate(self, step: int) -> Evaluated | None:
        if not self.draws:
            return None
        table = self.composed.file.evaluation
        began = time.monotonic()
        if table.weights == "ema":
            with self.trainer.average.in_place():
                found = evaluate(self.trainer.stage, self.draws, EVALUATION_BATCH)
        else:
            found = evaluate(self.trainer.stage, self.draws, EVALUATION_BATCH)
        self.evaluated_at = step
        if self.composed.file.guard.nonfinite_reward == "fail":
            found.check_finite(self.composed)
        image = picture(found, self.composed, self.folder / "samples" / f"step-{step:06d}.png")
        metrics = {**found.metrics(), "evaluation/seconds": time.monotonic() - began}
        self.observers.after_evaluation(step=step, metrics=metrics, picture=image)
        self.progress.after_evaluation(step, metrics)
        key = table.keep_best
        value = estimate(found.scores[key] if key else found.total).mean
        if value > self.best and step:
            self.best, self.best_name = value, f"step-{step:06d}"
            self._checkpoint()
        return found

    def _checkpoint(self) -> None:
        trainer, folder = self.trainer, self.folder / "checkpoints"
        state = {
            "policy_version": trainer.policy_version,
            "best": self.best_name,
            "best_value": self.best if self.best_name else None,
        }
        saved = checkpoints.save(
            folder, self.done, trainer.parameters, trainer.average.weights, state
        )
        kept = {saved.name, self.best_name}
        checkpoints.prune(folder, self.composed.file.output.keep_every, kept)

    def _interrupted(self, first: Evaluated | None, last: Evaluated | None) -> Summary:
        """A checkpoint, and no comparison where nothing was evaluated since the start."""
        self._checkpoint()
        return self._summary(first, last if self.evaluated_at else None, "stopped")

    def _end(self, reason: str) -> None:
        self.observers.finish(step=self.done, reason=reason)
        self.progress.finish(reason)

    def _summary(self, first: Evaluated | None, last: Evaluated | None, reason: str) -> Summary:
        summary = Summary(
            name=self.composed.file.name,
            steps=self.done,
            seconds=time.monotonic() - self.began,
            **_changes(self.composed, first, last),
            forwards=self.forwards,
            backwards=self.backwards,
            peak_memory_bytes=self.trainer.peak_memory,
            resident_memory_bytes=resident_memory(),
            versions=versions(self.composed),
            folder=str(self.folder),
            stopped=self.stop,
            evaluated_at=self.evaluated_at,
        )
        if first is not None and last is not None and len(first.images):
            captions = [p.text for p in self.composed.evaluation_prompts[: len(first.images)]]
            target = self.folder / "samples" / "before_after.png"
            save_before_after(target, first.images, last.images, captions)
        record = attrs.asdict(summary)
        del record["folder"]
        (self.folder / "summary.json").write_text(json.dumps(without_nan(record), indent=1))
        self._end(reason)
        return summary


def _changes(run: Run, first: Evaluated | None, last: Evaluated | None) -> dict[str, Any]:
    if first is None or last is None:
        return {"reward": {}, "rewards": {}, "held_out": {}}
    each = {key: compared(first.scores[key], last.scores[key]) for key in first.scores}
    return {
        "reward": compared(first.total, last.total),
        "rewards": {key: each[key] for key in run.rewards},
        "held_out": {key: each[key] for key in run.held_out},
    }


def versions(run: Run) -> dict[str, str]:
    """Versions of core, torch and every distribution the run uses."""
    names = {"headwater", "torch", "diffusers", *(n.entry.distribution for n in run.named)}
    out = {}
    for name in sorted(names):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # diffusers, where no backbone needs it
    return out


def _new_folder(run: Run, out: str | Path | None) -> Path:
    """Make the run folder and write the resolved run file. Nothing is ever overwritten."""
    folder = Path(out) if out is not None else _free_folder(run.file.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not an empty folder" if folder.is_dir() else "is a file"
        what = "already holds a run" if (folder / "run.toml").exists() else what
        raise InputError(str(folder), [f"the output folder {what}; nothing was written"])
    try:
        (folder / "samples").mkdir(parents=True)
        (folder / "run.toml").write_text(tomli_w.dumps(resolved(run)), encoding="utf-8")
    except OSError as error:
        raise InputError(str(folder), [f"the output folder cannot be written: {error}"]) from None
    return folder


def _free_folder(name: str) -> Path:
    for number in range(1, 100000):
        folder = Path("runs") / f"{name}-{number:03d}"
        if not folder.exists():
            return folder
    raise HeadwaterError(f"runs/{name}-NNN: no free number")


@contextmanager
def _interruptible(session: _Session) -> Iterator[None]:
    """Ctrl-C and SIGTERM finish the step and checkpoint; a second Ctrl-C stops at once."""

    def ask(number: int, _: object) -> None:
        if session.stop:
            raise KeyboardInterrupt
        session.stop = signal.Signals(number).name
        os.write(2, b"\nfinishing this step, then a checkpoint; once more stops at once\n")

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:
        before = {}  # not the main thread: signals are the caller's
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
