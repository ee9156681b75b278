"""What the benchmarks share: composed stages on the tiny model, and plain tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headwater.composition import compose
from headwater.geometry import draws_of
from headwater.stage import Stage, open_stage
from headwater.types import Rollout

HERE = Path(__file__).parent
BASE = HERE / "base.toml"


def stage_of(*overrides: str) -> Stage:
    """The base run file with overrides, loaded."""
    return open_stage(compose(BASE, overrides), "cpu")


def rollout_of(stage: Stage) -> Rollout:
    """The first rollout of a run, one micro-batch."""
    return stage.sample(draws_of(stage.run.file, stage.run.prompts, 0), 0)


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of a call: on one thread those of an idle machine, whatever else it does."""
    began = time.process_time()
    work()
    return time.process_time() - began


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in Markdown."""
    print(table_text(head, rows), end="")


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in [head, ["-" * width for width in widths], *rows]
    ]
    return "\n".join(lines) + "\n"
