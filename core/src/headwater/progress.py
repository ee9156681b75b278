"""What a person sees while a run goes on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import rich.progress as bars
from rich.console import Console

from headwater.faults import blamed

if TYPE_CHECKING:
    from headwater.composition import Run


class Progress(Protocol):
    """A display of a run."""

    def start(self, run: Run, folder: Path) -> None: ...

    def after_step(self, step: int, metrics: Mapping[str, float], skipped: str) -> None: ...

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def finish(self, reason: str) -> None: ...


class Quiet:
    """Shows nothing. What should not go unnoticed is a warning."""

    def start(self, run: Run, folder: Path) -> None:
        """Nothing."""

    def after_step(self, step: int, metrics: Mapping[str, float], skipped: str) -> None:
        """Nothing."""

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """A warning."""
        warnings.warn(text, stacklevel=2)

    def finish(self, reason: str) -> None:
        """Nothing."""


def notes(run: Run) -> list[str]:
    """What the plugins of a run have to tell after loading, one line each."""
    found: list[str] = []
    for named in run.named:
        if hasattr(named.plugin, "notes"):
            with blamed(named, "notes"):
                found += named.plugin.notes()
    return found


class Display:
    """A bar on a terminal: reward, gradient norm, time left. Elsewhere a line an evaluation."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rewards: tuple[str, ...] = ()
        self.steps = 0
        self.announced: set[str] = set()
        self.began = time.monotonic()
        self.bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("reward {task.fields[reward]}  grad {task.fields[norm]}"),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def start(self, run: Run, folder: Path) -> None:
        """Say what runs where, and what the plugins have to tell."""
        self.rewards = tuple(run.rewards)
        self.steps = run.file.steps
        self.console.print(
            f"{run.file.name}: {run.estimator.entry.name} with {run.algorithm.entry.name} on "
            f"{run.backbone.entry.name}, {run.file.steps} steps, into {folder}",
            highlight=False,
        )
        for text in notes(run):
            self.note(text)
        self.bar.start()
        self.task = self.bar.add_task("training", total=run.file.steps, reward="-", norm="-")

    def after_step(self, step: int, metrics: Mapping[str, float], skipped: str) -> None:
        """Advance the bar; a skipped update gets a line."""
        reward = " ".join(f"{metrics[f'reward/{key}']:.3f}" for key in self.rewards)
        norm = f"{metrics['grad_norm']:.2g}"
        self.bar.update(self.task, completed=step, reward=reward, norm=norm)
        if skipped:
            self.console.print(f"step {step}: update skipped, {skipped}", highlight=False)
        self._announce_kl(step, metrics)

    def _announce_kl(self, step: int, metrics: Mapping[str, float]) -> None:
        """The first magnitude of a KL, which tells whether its weight is sensible."""
        for name, value in metrics.items():
            key = name.removeprefix("algorithm/")
            if key.startswith("kl_") and value > 0 and key not in self.announced:
                self.announced.add(key)
                self.console.print(f"step {step}: {key} {value:.3g}", highlight=False)

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line."""
        parts = []
        for name, value in metrics.items():
            key = name.removeprefix("evaluation/")
            if key != name and not key.endswith("_se") and key not in ("seconds", "total"):
                parts.append(f"{key} {value:.4f} ± {metrics[name + '_se']:.4f}")
        at = f"{step:>{len(str(self.steps))}}/{self.steps}"
        spent = time.monotonic() - self.began
        self.console.print(f"step {at}  {'  '.join(parts)}  {spent:.0f} s", highlight=False)

    def note(self, text: str) -> None:
        """A paragraph."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def finish(self, reason: str) -> None:
        """Stop the bar."""
        self.bar.stop()
