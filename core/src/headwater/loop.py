"""The training loop: evaluate, then step, log, evaluate and checkpoint until done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from headwater import checkpoints, launch, processes, sharding, state, summary
from headwater.composition import Run, compose
from headwater.errors import GuardError, OutputError
from headwater.evaluation import Evaluated, evaluate, evaluation_draws, picture
from headwater.geometry import optimizer_steps
from headwater.hacking import STOPPED, Watch
from headwater.interruption import Interruption
from headwater.memory import resident_memory
from headwater.observers import Observers
from headwater.progress import Progress, Quiet
from headwater.resume import MISFITS, Candidates, Point, identity
from headwater.run_folder import writing
from headwater.stage import open_stage
from headwater.standing import Standing
from headwater.summary import Summary
from headwater.trainer import Trainer


def run(
    path: str | Path,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    *,
    resume: bool = False,
) -> Summary:
    """Compose and train a run file, without a progress display.

    resume: go on from the newest whole checkpoint in `out`.
    """
    return train(compose(path, overrides), out, resume=resume)


def train(
    run: Run,
    out: str | Path | None = None,
    progress: Progress | None = None,
    *,
    resume: bool = False,
) -> Summary:
    """Train a composed run into a new folder, or go on with the run in an old one.

    Raises InputError where `out` already holds a run, or cannot be resumed with this run file;
    GuardError where a guard stops it; OutputError where the folder cannot be written any more.
    """
    process = launch.start()
    launch.check(run)
    display, stop = progress if progress and processes.first() else Quiet(), Interruption()
    with stop.watched(), launch.folder_of(run, out, resume=resume) as folder:
        found = Candidates(run, folder, lambda text: display.note(text))
        points = launch.opened(found) if resume else None
        with launch.loading(folder, resume=resume):
            trainer = Trainer(open_stage(run, str(process.device)))
        session = _Session(run, folder, trainer, display, stop)
        if points is not None:
            session.resume(points, found.misfit)
        return session.run()


class _Session:
    """One run from its first evaluation to its summary."""

    def __init__(
        self, run: Run, folder: Path, trainer: Trainer, progress: Progress, stop: Interruption
    ) -> None:
        self.composed, self.folder, self.trainer = run, folder, trainer
        self.progress, self.stop = progress, stop
        self.identity = attrs.asdict(identity(run))
        self.observers = Observers(run, folder, lambda text: progress.note(text))
        self.draws = evaluation_draws(run)
        self.at = Standing(Watch.of(run.file.evaluation))
        self.saved_at = -1
        self.doubtful = False
        """An evaluation found the weights to give scores that are not finite."""

    def run(self) -> Summary:
        """The loop."""
        file = self.composed.file
        self.stop.graceful = True
        self.observers.start()
        self.progress.start(self.composed, self.folder)
        try:
            self._evaluate_if_due()
            while self.at.done < file.steps and not self._asked_to_stop():
                skipped = self._step()
                self._evaluate_if_due()
                if self.at.done % file.output.checkpoint_every == 0 or self.at.done == file.steps:
                    self._checkpoint()
                self.trainer.guard.check(skipped)
            if self.unfinished:
                self._checkpoint()
            found = self._summary()
        except BaseException as error:
            self._fail(error)
            raise
        self._end("stopped" if found.stopped else "done")
        return found

    def _asked_to_stop(self) -> bool:
        """Several processes finish the rollout first: each holds only its share of it."""
        asked = processes.anywhere(self.stop or self.at.watch.stopped)
        return asked and launch.may_stop(self.composed.file, self.at.done)

    def _step(self) -> str:
        """One optimizer step. Returns: why its update was skipped, or nothing."""
        done = self.at.done
        self.observers.before_step(done + 1)
        result = self.trainer.step(done, measure_memory=done == 1)
        self.at.done += 1
        self.at.forwards += result.forwards
        self.at.backwards += result.backwards
        self.observers.after_step(self.at.done, result.metrics)
        self.progress.after_step(self.at.done, result.metrics, result.skipped)
        return result.skipped

    @property
    def evaluation_due(self) -> bool:
        """Whether the weights as they are should be evaluated and were not."""
        file, done = self.composed.file, self.at.done
        due = done % file.evaluation.every == 0 or done == file.steps
        return bool(self.draws) and due and self.at.evaluated_at != done

    @property
    def unfinished(self) -> bool:
        """Whether the run was stopped with work left."""
        return self.at.done < self.composed.file.steps or self.evaluation_due

    def _evaluate_if_due(self) -> None:
        if not self.evaluation_due:
            return
        began = time.monotonic()
        found = self._evaluated()
        if found is None:
            return  # somebody asked to stop; a resumed run does it
        if self.composed.file.guard.nonfinite_reward == "fail":
            self.doubtful = True
            found.check_finite(self.composed)
            self.doubtful = False
        with writing("the sample picture", self.folder):
            name = f"step-{self.at.done:06d}"
            path = self.folder / "samples" / f"{name}.png"
            image = picture(found, self.composed, path) if processes.first() else None
        told = len(self.at.watch.warnings)
        metrics = self.at.evaluated(found)
        metrics["evaluation/seconds"] = time.monotonic() - began
        self.observers.after_evaluation(self.at.done, metrics, image)
        self.progress.after_evaluation(self.at.done, metrics)
        key = self.composed.file.evaluation.keep_best
        if self.at.is_best(name, found, key):
            self._checkpoint()
        for text in self.at.watch.warnings[told:] if processes.first() else ():
            self.progress.note(
                f"WARNING: {text}. The best checkpoint by {key!r} is {self.at.best_name}."
            )

    def _evaluated(self) -> Evaluated | None:
        """An evaluation of the averaged or the live weights; None where it was given up."""
        stage, stopped, file = self.trainer.stage, self.stop.__bool__, self.composed.file
        batch = file.evaluation.batch or file.prompts.micro_batch
        if file.evaluation.weights == "live":
            return evaluate(stage, self.draws, batch, stopped)
        with self.trainer.average.in_place():
            return evaluate(stage, self.draws, batch, stopped)

    def _checkpoint(self) -> None:
        if self.saved_at == self.at.done:
            return
        trainer, folder = self.trainer, self.folder / "checkpoints"
        record, files = state.capture(trainer, self.at.done)
        own, evaluations = self.at.capture()
        record |= {**own, "identity": self.identity, "observers": self.observers.state()}
        files |= evaluations
        weights, average = map(sharding.whole, (trainer.parameters, trainer.average.weights))
        args = (folder, self.at.done, weights, average, record, files)
        saved = processes.on_first(lambda: checkpoints.save(*args))
        self.saved_at = self.at.done
        self._prune(saved)

    def _prune(self, newest: Path) -> None:
        """Keep the newest, the best and each `keep_every`-th."""
        every = self.composed.file.output.keep_every
        if processes.first():
            checkpoints.prune(newest.parent, every, {newest.name, self.at.best_name})

    def resume(self, points: Iterator[Point], misfit: Callable[[Path, Exception], None]) -> None:
        """Go on from the first point that fits; `misfit` names the others."""
        for point in points:
            if point.measured_otherwise and self.draws:
                self.at.first = self._evaluated()  # the model before training is still in place
            try:
                self._go_on(point)
            except MISFITS as error:
                misfit(point.path, error)
                continue
            changed = [f"changed: {text}" for text in point.changed.values()]
            for text in (*changed, *point.notes, f"resumed from {point.path}"):
                self.progress.note(text)
            self._prune(point.path)  # what a kill may have left to be done
            return

    def _go_on(self, point: Point) -> None:
        """Take over everything a checkpoint holds."""
        self.at.restore(point, lambda text: self.progress.note(text))
        self.saved_at = self.at.done
        files = {stem: checkpoints.read_tensors(point.path, stem) for stem in state.STEMS}
        weights, average = (checkpoints.read_tensors(point.path, n) for n in ("weights", "ema"))
        state.restore(self.trainer, self.at.done, point.state, weights, average, files)
        self.trainer.publish()
        self.observers.restore(point.state["observers"])

    def _fail(self, error: BaseException) -> None:
        """The run ends with an error: save what is good, and say where it was."""
        steps = self.composed.file.steps
        error.add_note(
            f"at optimizer step {min(self.at.done + 1, steps)} of {steps}, {self.folder}"
        )
        self._rescue(error)
        self.observers.fail(self.at.done, error)
        self._end("failed")

    def _rescue(self, error: BaseException) -> None:
        """Save the steps that are done, where they are good and no checkpoint has them."""
        sound = self.at.done > self.saved_at and not (self.trainer.updating or self.doubtful)
        told = isinstance(error, Exception) and not isinstance(error, OutputError)
        together = processes.world() == 1 or isinstance(error, GuardError)
        if not (self.at.done and sound and told and together):
            return
        try:
            self._checkpoint()
        except Exception as second:  # noqa: BLE001 - the first error is the one to be read
            error.add_note(f"nor could a checkpoint be written: {second}")

    def _end(self, reason: str) -> None:
        self.observers.finish(self.at.done, reason)
        self.progress.finish(reason)

    def _summary(self) -> Summary:
        at = self.at
        assert self.unfinished or at.done == optimizer_steps(self.composed.file)
        last = at.last if at.evaluated_at > 0 else None
        found = Summary(
            name=self.composed.file.name,
            steps=at.done,
            seconds=at.seconds,
            **summary.changes(self.composed, at.first, last),
            forwards=at.forwards,
            backwards=at.backwards,
            peak_memory_bytes=self.trainer.peak_memory,
            resident_memory_bytes=resident_memory(),
            versions=self.identity["versions"],
            folder=str(self.folder),
            stopped=STOPPED if at.watch.stopped else self.stop.asked if self.unfinished else "",
            evaluated_at=max(0, at.evaluated_at),
            warnings=tuple(at.watch.warnings),
        )
        with writing("the summary", self.folder):
            if processes.first():
                summary.write(found, self.composed, self.folder, at.first, last)
        return found
