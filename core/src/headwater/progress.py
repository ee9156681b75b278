"""What a person sees while a run goes on."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Protocol

import rich.progress as bars
from rich.console import Console

from headwater.faults import blamed

if TYPE_CHECKING:
    from headwater.composition import Run

RECENT = 20
"""Steps that the reward and the time left are taken from."""


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
        self.every = 1
        self.announced: set[str] = set()
        self.began = time.monotonic()
        self.recent: deque[Mapping[str, float]] = deque(maxlen=RECENT)
        self.pause = 0.0
        """Seconds of the last evaluation."""
        self.bar = bars.Progress(
            bars.BarColumn(bar_width=10),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.description}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )

    def start(self, run: Run, folder: Path) -> None:
        """Say what runs where, and what the plugins have to tell."""
        self.rewards = tuple(run.rewards)
        self.steps, self.every = run.file.steps, run.file.evaluation.every
        self.note(
            f"{run.file.name}: {run.estimator.entry.name} with {run.algorithm.entry.name} on "
            f"{run.backbone.entry.name}, {run.file.steps} steps, into {folder}"
        )
        for text in notes(run):
            self.note(text)
        self.bar.start()
        self.task = self.bar.add_task("", total=run.file.steps)

    def after_step(self, step: int, metrics: Mapping[str, float], skipped: str) -> None:
        """Advance the bar; a skipped update gets a line."""
        self.recent.append(metrics)
        self.bar.update(self.task, completed=step, description=self._now(step, metrics))
        if skipped:
            self.note(f"step {step}: update skipped, {skipped}")
        self._announce_kl(step, metrics)

    def _now(self, step: int, metrics: Mapping[str, float]) -> str:
        """Rewards over the recent steps, the step's gradient norm, and the time that is left."""
        told = []
        for key in self.rewards:
            values = [m[f"reward/{key}"] for m in self.recent]
            finite = len(values) > 1 and all(map(math.isfinite, values))
            error = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if finite else ""
            told.append(f"{fmean(values):.3f}{error}")
        shown = told if len(told) < 3 else [told[0], f"(+{len(told) - 1})"]
        left = duration(self.left(step))
        return f"reward {' '.join(shown)}  grad {metrics['grad_norm']:.2g}  left {left}"

    def left(self, step: int) -> float:
        """Seconds: a usual one of the recent steps for each to come, and their evaluations."""
        usual = median(m["seconds"] for m in self.recent)
        evaluations = math.ceil(self.steps / self.every) - step // self.every
        return usual * (self.steps - step) + self.pause * max(0, evaluations)

    def _announce_kl(self, step: int, metrics: Mapping[str, float]) -> None:
        """The first magnitude of a KL, which tells whether its weight is sensible."""
        for name, value in metrics.items():
            key = name.removeprefix("algorithm/")
            if key.startswith("kl_") and value > 0 and key not in self.announced:
                self.announced.add(key)
                self.note(f"step {step}: {key} {value:.3g}")

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line: each reward, and its paired change since the first evaluation."""
        self.pause = metrics.get("evaluation/seconds", 0.0)
        parts = [f"step {step:>{len(str(self.steps))}}/{self.steps}"]
        for name, value in metrics.items():
            key = name.removeprefix("evaluation/")
            if key == name or key.endswith("_se") or key in ("seconds", "total"):
                continue
            text = f"{key} {value:.4f} ± {metrics[name + '_se']:.4f}"
            if f"change/{key}" in metrics:
                change, error = metrics[f"change/{key}"], metrics[f"change/{key}_se"]
                text += f" ({change:+.4f} ± {error:.4f})"
            parts.append(text)
        parts.append(f"{time.monotonic() - self.began:.0f} s")
        self.note("\n".join(self._lines(parts)))

    def _lines(self, parts: Sequence[str]) -> list[str]:
        """Parts beside each other; on a terminal what does not fit goes into lines of its own."""
        lines = [parts[0]]
        for part in parts[1:]:
            longer = f"{lines[-1]}  {part}"
            if not self.console.is_terminal or len(longer) <= self.console.width:
                lines[-1] = longer
            else:
                lines.append(f"  {part}")
        return lines

    def note(self, text: str) -> None:
        """A paragraph; nothing in it is markup."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def finish(self, reason: str) -> None:
        """Stop the bar."""
        self.bar.stop()


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: `1:02:03`, or `2:03`."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
