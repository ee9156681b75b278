"""The project's performance table: ratios within one run, compared with a saved one.

    python bench/all.py [--save FILE] [--against FILE] [--json] [--only PART ...]

CPU seconds on one thread, so that other work on the machine matters little; medians of ratios
within a repeat, the order alternating. Exit code 1 where a row is worse than the saved one by more
than its tolerance, or is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import jagg_cost
import memory
import overhead
import torch
from common import HERE, quartiles, rollout_of, stage_of, table_text, timed

from headwater.randomness import generator_of

SAVED = HERE / "saved.json"
ESTIMATORS = (
    *("draft-k", "draft-lv", "refl", "drtune", "leapalign"),
    *("flowbp-sparse", "flowbp-bridge", "flowbp-lagrange", "flowbp-hat", "flowbp-chain"),
)


@attrs.frozen
class Row:
    """One ratio."""

    name: str
    value: float
    tolerance: float
    """Part of the saved value by which it may be worse."""
    higher: bool = False
    """Whether more is better."""
    low: float | None = None
    high: float | None = None
    """Quartiles, where it was repeated."""

    @classmethod
    def of(
        cls, name: str, ratios: Sequence[float], tolerance: float, *, higher: bool = False
    ) -> Row:
        """Median and quartiles."""
        low, middle, high = quartiles(ratios)
        return cls(name, middle, tolerance, higher, low, high)

    def verdict(self, saved: float) -> str:
        """`same`, `better` or `WORSE` than it was."""
        change = self.value / saved if self.higher else saved / self.value
        if change < 1 / (1 + self.tolerance):
            return "WORSE"
        return "better" if change > 1 + self.tolerance else "same"


def modes() -> list[Row]:
    """Peak memory of the engine: allocator events, which repeat exactly."""

    def peak(mode: str, *sets: str) -> int:
        stage = stage_of(*sets, f"engine.mode={mode}")
        return memory.engine_only(stage, rollout_of(stage), mode)

    def sparse(mode: str, k: int) -> int:
        return peak(mode, "estimator.use=flowbp-sparse", f"estimator.k={k}")

    rows = [
        Row(f"memory: {mode}, K = 8 over K = 1", sparse(mode, 8) / sparse(mode, 1), 0.02)
        for mode in ("stream", "joint", "fused")
    ]
    one = peak("stream", "estimator.use=draft-k", "estimator.k=1")
    whole = peak("stream", "estimator.use=bptt")
    return [*rows, Row("memory: stream, bptt over one step", whole / one, 0.03)]


def estimators(repeats: int = 7) -> list[Row]:
    """A backward stage of 8 samples and 20 steps, all on the same rollout."""
    stages = {name: stage_of(f"estimator.use={name}") for name in ("bptt", *ESTIMATORS)}
    rollout = rollout_of(stages["bptt"])
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    for repeat in range(repeats + 1):
        order = list(stages.items())
        for name, stage in order if repeat % 2 else reversed(order):
            generator = generator_of("bench", repeat)
            spent = timed(partial(stage.backward, rollout, generator, len(rollout.batch)))
            if repeat:
                seconds[name].append(spent)
    return [
        Row.of(f"seconds: {name} over bptt", jagg_cost.paired(own, seconds["bptt"]), 0.25)
        for name, own in seconds.items()
        if name != "bptt"
    ]


def jagg(repeats: int = 8) -> list[Row]:
    """The update stage of a policy gradient through two nodes a group."""
    rows = []
    for w in (4, 8):
        works, bare = jagg_cost.works_of("full", w)
        found, _ = jagg_cost.stage_seconds(works, bare, w, repeats)
        exact = found["exact"]
        rows.append(
            Row.of(
                f"seconds: exact over bare, W = {w}", jagg_cost.paired(exact, found["bare"]), 0.1
            )
        )
        for kind in ("fresh", "cached"):
            gain = jagg_cost.paired(exact, found[f"jagg, {kind}"])
            rows.append(Row.of(f"gain: jagg over exact, W = {w}, {kind}", gain, 0.2, higher=True))
    return rows


def start_up(repeats: int = 15) -> list[Row]:
    """The command line over the import of what it is made of."""
    program = str(Path(sys.executable).with_name("headwater"))
    commands = {
        "base": [sys.executable, "-c", "import click, rich"],
        "--help": [program, "--help"],
        "plugins": [program, "plugins"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            seconds[name].append(_child_seconds(command))
    return [
        Row.of(f"start-up: {name} over click and rich", jagg_cost.paired(own, seconds["base"]), 0.2)
        for name, own in seconds.items()
        if name != "base"
    ]


def _child_seconds(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loop(pairs: int = 20) -> list[Row]:
    """An optimizer step over that of a bare loop."""
    return [
        Row.of(
            f"loop: a step over a bare one, {train}",
            [ours / bare for ours, bare in overhead.pairs_of(pairs, train)],
            0.1,
        )
        for train in ("full", "lora")
    ]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "modes": modes,
    "estimators": estimators,
    "jagg": jagg,
    "start-up": start_up,
    "loop": loop,
}


def compared(
    rows: Sequence[Row], saved: dict[str, dict[str, Any]], parts: Sequence[str]
) -> list[dict[str, Any]]:
    """Every row with the saved value and a verdict; saved rows of `parts` that are gone too."""
    found = []
    for row in rows:
        old = saved.get(row.name)
        verdict = "new" if old is None else row.verdict(old["value"])
        found.append({**attrs.asdict(row), "saved": old and old["value"], "verdict": verdict})
    names = {row.name for row in rows}
    for name, old in saved.items():
        if name not in names and old["part"] in parts:
            found.append({"name": name, "saved": old["value"], "verdict": "MISSING"})
    return found


def printed(found: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    head = ["ratio", "now", "quartiles", "saved", "tolerance", "verdict"]
    lines = []
    for row in found:
        saved = "-" if row["saved"] is None else f"{row['saved']:.3f}"
        if row["verdict"] == "MISSING":
            lines.append([row["name"], "-", "-", saved, "-", row["verdict"]])
            continue
        spread = "exact" if row["low"] is None else f"{row['low']:.3f}, {row['high']:.3f}"
        allowed = f"{'-' if row['higher'] else '+'}{row['tolerance']:.0%}"
        now = f"{row['value']:.3f}"
        lines.append([row["name"], now, spread, saved, allowed, row["verdict"]])
    return table_text(head, lines)


def to_save(
    rows: Sequence[Row], homes: dict[str, str], rest: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What `--save` writes; rest: saved rows of parts that were not measured."""
    kept = {
        row.name: {"value": row.value, "low": row.low, "high": row.high, "part": homes[row.name]}
        for row in rows
    }
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return {"machine": f"{platform.machine()}, {versions}", "rows": {**rest, **kept}}


def main() -> int:
    """Measure, compare and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="Write what was measured.")
    parser.add_argument("--against", type=Path, help=f"Compare with it; default {SAVED.name}.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    against = options.against or SAVED
    if options.against and not against.is_file():
        parser.error(f"--against: {against} is no file")
    saved = json.loads(against.read_text())["rows"] if against.is_file() else {}
    torch.set_num_threads(1)
    began, rows, homes = time.monotonic(), list[Row](), dict[str, str]()
    for part in options.only:
        print(f"measuring {part}", file=sys.stderr, flush=True)
        for row in PARTS[part]():
            rows.append(row)
            homes[row.name] = part
    found = compared(rows, saved, options.only)
    minutes = (time.monotonic() - began) / 60
    print(json.dumps(found, indent=1) if options.json else printed(found))
    print(f"{minutes:.1f} minutes", file=sys.stderr)
    if options.save:
        rest = {name: old for name, old in saved.items() if old["part"] not in options.only}
        options.save.write_text(json.dumps(to_save(rows, homes, rest), indent=1) + "\n")
    return int(any(row["verdict"] in ("WORSE", "MISSING") for row in found))


if __name__ == "__main__":
    sys.exit(main())
