"""Peak memory of one backward stage, by active steps and engine mode.

Allocator events, after one warm call, gradients allocated beforehand, so that it is exact and
repeatable. Two numbers each: the engine alone, and the whole stage with decoder and reward.

    python bench/memory.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import attrs
import torch
from common import print_table, rollout_of, stage_of

from headwater.engine import run_groups
from headwater.memory import peak_memory
from headwater.randomness import generator_of
from headwater.stage import Stage
from headwater.types import Credit, Rollout

CASES = [
    *[
        (f"flowbp-sparse, K = {k}", ["estimator.use=flowbp-sparse", f"estimator.k={k}"])
        for k in (1, 2, 4, 8)
    ],
    ("draft-k, K = 1", ["estimator.use=draft-k", "estimator.k=1"]),
    ("bptt, 20 steps", ["estimator.use=bptt"]),
    ("flowbp-lagrange", ["estimator.use=flowbp-lagrange"]),
    ("leapalign", ["estimator.use=leapalign"]),
]


def engine_only(stage: Stage, rollout: Rollout, mode: str) -> int:
    """Bytes the engine holds at most, beyond weights, gradients and the cached rollout."""
    hook = stage.manager.hook
    surrogate = hook.build_surrogate(
        backbone=stage.backbone, rollout=rollout, generator=generator_of("bench")
    )
    carried = torch.ones_like(rollout.state(0))
    surrogate = attrs.evolve(surrogate, rollout=rollout)
    credit = Credit(endpoint_gradient=carried)

    def work() -> object:
        return run_groups(hook, stage.backbone, surrogate, "endpoint", credit, carried, mode)

    work()
    return peak_memory(work)[1]


def whole_stage(stage: Stage, rollout: Rollout) -> int:
    """The same with surrogate, decoder and reward."""

    def work() -> object:
        return stage.backward(rollout, generator_of("bench"), len(rollout.batch))

    work()
    return peak_memory(work)[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for name, overrides in CASES:
        for mode in ("stream", "joint", "fused"):
            stage = stage_of(*overrides, f"engine.mode={mode}")
            rollout = rollout_of(stage)
            row = found.setdefault(name, {})
            row[mode] = engine_only(stage, rollout, mode) / 1e6
            row[f"{mode}, whole stage"] = whole_stage(stage, rollout) / 1e6
            row["cached rollout"] = (rollout.latents.nbytes + rollout.velocities.nbytes) / 1e6
    head = ["MB", *next(iter(found.values()))]
    print_table(head, [[n, *(f"{v:.2f}" for v in row.values())] for n, row in found.items()])
    sparse = [found[f"flowbp-sparse, K = {k}"]["stream"] for k in (1, 8)]
    single, full = found["draft-k, K = 1"], found["bptt, 20 steps"]
    print(f"\nstream, K = 8 over K = 1: {sparse[1] / sparse[0]:.4f} (at most 1.05)")
    bound = single["stream"] + single["cached rollout"]
    print(f"stream, bptt over one step and the cached states: {full['stream'] / bound:.4f} (1.10)")
    joint = [found[f"flowbp-sparse, K = {k}"]["joint"] for k in (1, 8)]
    print(f"joint, K = 8 over K = 1: {joint[1] / joint[0]:.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
