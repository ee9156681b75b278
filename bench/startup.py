"""How long commands take to start: medians of wall and CPU seconds of child processes.

    python bench/startup.py [--times 15]

The commands take turns; the last one has 50 further packages of one plugin each on its path.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import print_table, quartiles

from headwater.installed import packages
from headwater.testing.packages import write_package


def seconds_of(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one child."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(times: int) -> None:
    """Measure and print."""
    headwater = str(Path(sys.executable).with_name("headwater"))
    with tempfile.TemporaryDirectory() as folder:
        for i in range(50):
            names = {f"estimator mine-{i:02d}": "Mine"}
            write_package(Path(folder), f"package-{i:02d}", names, "raise SystemExit")
        more = {**os.environ, "PYTHONPATH": folder}
        commands = {
            'python -c "import click, rich"': ([sys.executable, "-c", "import click, rich"], None),
            "headwater --help": ([headwater, "--help"], None),
            f"headwater plugins, {len(packages())} packages": ([headwater, "plugins"], None),
            "headwater plugins, 50 more": ([headwater, "plugins"], more),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(times):
            for name, (command, environment) in commands.items():
                found[name].append(seconds_of(command, environment or os.environ))
    rows = []
    for name, pairs in found.items():
        walls, cpus = zip(*pairs, strict=True)
        low, middle, high = quartiles(walls)
        quarters = f"{low:.3f}, {high:.3f}"
        rows.append(
            [name, f"{middle:.3f}", quarters, f"{quartiles(cpus)[1]:.3f}", f"{min(cpus):.3f}"]
        )
    print_table(["command", "wall s", "quartiles", "CPU s", "least CPU s"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15)
    main(parser.parse_args().times)
