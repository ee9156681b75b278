"""Many runs in processes of their own, resumable, and the mean of their results."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Job = tuple[Path, Sequence[str]]
"""Run folder, and overrides of the run file."""


def run_all(file: Path, jobs: Sequence[Job]) -> None:
    """Two at a time, one thread each; a folder that already has a summary is not repeated."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: run_one(file, *job), jobs))


def run_one(file: Path, out: Path, overrides: Sequence[str]) -> None:
    """One run in a process of its own; what an interrupted one left is removed."""
    if (out / "summary.json").exists():
        return
    shutil.rmtree(out, ignore_errors=True)
    sets = [part for text in overrides for part in ("--set", text)]
    command = [sys.executable, "-m", "headwater", "run", str(file), *sets, "--out", str(out)]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"{out.name}: exit code {done.returncode}", flush=True)
    if done.returncode:
        print(done.stderr[-2000:], flush=True)


def pooled(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Mean over seeds, and its standard error from each seed's own."""
    mean = sum(row["mean"] for row in rows) / len(rows)
    return mean, math.sqrt(sum(row["se"] ** 2 for row in rows)) / len(rows)


def settings_of_run(out: Path) -> dict[str, Any]:
    """The resolved run file of a run folder."""
    return tomllib.loads((out / "run.toml").read_text())


def change_cells(parts: Sequence[dict[str, Any]]) -> list[str]:
    """Before, after and paired change of one score over several runs, with each run's own."""
    change, se = pooled([p["difference"] for p in parts])
    seeds = " ".join(f"{p['difference']['mean']:+.3f}" for p in parts)
    before, after = (pooled([p[which] for p in parts])[0] for which in ("before", "after"))
    return [f"{before:.4f}", f"{after:.4f}", f"{change:+.4f} ± {se:.4f} ({seeds})"]
