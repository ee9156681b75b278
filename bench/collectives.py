"""All-gathers and reduce-scatters of one JAGG group under FSDP2, by engine mode.

    python bench/collectives.py

Two processes on a CPU (gloo), the tiny model (4 blocks and the rest: 5 sharded modules), one group
of W = 4 with cached velocities: two evaluations with gradient.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FILE = Path(__file__).parents[1] / "plugins" / "jagg" / "examples" / "jagg.toml"
SETS = [
    *("steps=1", "backbone.train=full", "prompts.per_step=2", "prompts.group=2", "rollout.steps=5"),
    *("estimator.window=4", "estimator.basis=linear", "estimator.middle=cached"),
]


class Collectives(TorchDispatchMode):
    """Counts collectives as they are dispatched, those of a backward apart."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, then run."""
        name = str(func)
        for key in ("allgather", "reduce_scatter"):
            if name.startswith("c10d.") and key in name:
                self.found[key] += 1
        return func(*args, **(kwargs or {}))


def worker(mode: str) -> None:
    """Count in one process; the first prints."""
    from accelerate import PartialState

    from headwater import processes
    from headwater.composition import compose
    from headwater.geometry import rollout_draws
    from headwater.stage import open_stage
    from headwater.trainer import Trainer

    state = PartialState()
    run = compose(FILE, [*SETS, f"engine.mode={mode}"])
    trainer = Trainer(open_stage(run, str(state.device)))
    assert rollout_draws(run, 0)
    _, work, last = next(iter(trainer._per_step(0)))
    trainer.stage.backbone.last_work = last
    counter = Collectives()
    with counter:
        work()
    if processes.first():
        sys.stdout.write(json.dumps(counter.found) + "\n")
    state.destroy_process_group()


def main() -> None:
    """One row a mode."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    print("| mode | all-gathers | reduce-scatters |\n| --- | --- | --- |")
    for mode in ("stream", "joint", "fused"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node", "2", __file__, mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
        found = json.loads(line)
        print(f"| {mode} | {found['allgather']} | {found['reduce_scatter']} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    worker(sys.argv[1]) if len(sys.argv) > 1 else main()
