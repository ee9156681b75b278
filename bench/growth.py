"""Whether memory grows: resident bytes over 300 optimizer steps, and their slope.

    python bench/growth.py [--steps 300]

One process, one thread, the tiny model, LoRA; an endpoint and a per-step run. The first 50 steps
warm up allocators and are left out of the fit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from headwater.composition import compose
from headwater.stage import open_stage
from headwater.trainer import Trainer

PLUGINS = Path(__file__).parents[1] / "plugins"
RUNS = {
    "direct, flowbp-bridge": (PLUGINS / "flowbp" / "examples" / "flowbp-bridge.toml", []),
    "flow-grpo, jagg": (
        PLUGINS / "jagg" / "examples" / "jagg.toml",
        ["prompts.group=2", "algorithm.updates=2", "estimator.basis=linear"],
    ),
}
SMALL = ["prompts.per_step=2", "rollout.steps=6", "output.trackers=[]"]
WARM = 50


def resident() -> int:
    """Bytes this process has resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """One row a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    print("| run | MB after warm-up | MB at the end | slope, kB a step |")
    print("| --- | --- | --- | --- |")
    for name, (file, sets) in RUNS.items():
        run = compose(file, [*SMALL, *sets, f"steps={steps}"])
        trainer = Trainer(open_stage(run, "cpu"))
        seen = []
        for index in range(steps):
            trainer.step(index)
            seen.append(resident())
        tail = np.array(seen[WARM:]) / 1e6
        slope = float(np.polyfit(np.arange(len(tail)), tail, 1)[0]) * 1e3
        print(f"| {name} | {tail[0]:.1f} | {tail[-1]:.1f} | {slope:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
