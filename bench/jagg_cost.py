"""What JAGG costs beside the exact policy gradient: seconds and peak memory.

One process, one thread, the tiny model in float32, 32 samples, variants interleaved in every
repeat; medians and quartiles of the paired ratios. Bare: W forwards and backwards written by
hand, which the exact estimator may not exceed by more than 5 %. Cost model: with the forward F
and backward B of the same repeat, W steps cost W (F + B) exactly, W F + 2 B with fresh
velocities and 2 (F + B) with cached ones.

    python bench/jagg_cost.py [--repeats 12] [--train full]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from common import print_table, quartiles, timed

from headwater.composition import compose
from headwater.geometry import schedule_of
from headwater.memory import peak_memory
from headwater.stage import open_stage
from headwater.trainer import Trainer

HERE = Path(__file__).parent
BATCH = 32
ROUTED = "estimator={{use='jagg',window={w},routed={routed},middle='{middle}'}}"


def trainer_of(train: str, steps: int, estimator: str) -> Trainer:
    """A trainer whose rollout of one micro-batch is drawn."""
    sets = [
        f"backbone.train={train}",
        "prompts.per_step=4",
        "prompts.group=8",
        f"prompts.micro_batch={BATCH}",
        f"rollout.steps={steps}",
        "rollout.guidance=1.0",
        estimator,
    ]
    trainer = Trainer(open_stage(compose(HERE / "policy.toml", sets), "cpu"))
    trainer._gradient(0, measure_memory=False)
    return trainer


def update_stage(trainer: Trainer) -> Callable[[], object]:
    """The gradient of one micro-batch, its rollout and credit given."""
    schedule = schedule_of(trainer.stage.run, 0)
    (item,) = trainer.collected

    def work() -> object:
        return trainer._reinforce(item, 0, schedule, BATCH * len(schedule.trained))

    return work


class Bare:
    """Forwards and backwards of the trained steps, by hand."""

    def __init__(self, trainer: Trainer) -> None:
        self.backbone = trainer.stage.backbone.plugin
        rollout = trainer.collected[0].rollout
        self.conditioning = rollout.batch.conditioning
        steps = schedule_of(trainer.stage.run, 0).trained
        self.inputs = [(rollout.state(i), rollout.sigmas[i].expand(BATCH)) for i in steps]
        self.cotangent = torch.randn_like(rollout.state(0))
        self.forward = self.backward = 0.0

    def __call__(self) -> None:
        """One forward and backward a step; their seconds are kept."""
        self.forward = self.backward = 0.0
        for x, sigma in self.inputs:
            began = time.process_time()
            v = self.backbone.velocity(x, sigma, self.conditioning)
            middle = time.process_time()
            v.backward(self.cotangent)
            self.forward += middle - began
            self.backward += time.process_time() - middle


def spread(values: Sequence[float]) -> str:
    """Median and quartiles."""
    low, middle, high = quartiles(values)
    return f"{middle:.3f} ({low:.3f}, {high:.3f})"


def works_of(train: str, w: int) -> tuple[dict[str, Callable[[], object]], Bare]:
    """The update stage of one group of W steps by each variant, and the bare one; all warm."""
    variants = {
        "exact": "estimator={use='exact'}",
        "jagg, fresh": ROUTED.format(w=w, routed="1.0", middle="recompute"),
        "jagg, cached": ROUTED.format(w=w, routed="1.0", middle="cached"),
    }
    trainers = {name: trainer_of(train, w + 1, text) for name, text in variants.items()}
    works = {name: update_stage(trainer) for name, trainer in trainers.items()}
    bare = Bare(trainers["exact"])
    for work in (bare, *works.values()):
        work()
    return works, bare


def stage_seconds(
    works: dict[str, Callable[[], object]], bare: Bare, w: int, repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of every repeat by variant and of "bare", and the gains of the cost model."""
    seconds: dict[str, list[float]] = {name: [] for name in ("bare", *works)}
    models: dict[str, list[float]] = {"jagg, fresh": [], "jagg, cached": []}
    for repeat in range(repeats):
        order = [("bare", bare), *works.items()]
        for name, work in order if repeat % 2 else reversed(order):
            seconds[name].append(timed(work))
        f, b = bare.forward / w, bare.backward / w
        models["jagg, fresh"].append(w * (f + b) / (w * f + 2 * b))
        models["jagg, cached"].append(w / 2)
    return seconds, models


def paired(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Ratios within each repeat."""
    return [a / b for a, b in zip(left, right, strict=True)]


def stage_rows(train: str, w: int, repeats: int) -> list[list[str]]:
    """The table's rows of one group of W steps."""
    works, bare = works_of(train, w)
    seconds, models = stage_seconds(works, bare, w, repeats)
    rows = []
    for name in works:
        peak = peak_memory(works[name])[1] / 1e6
        head = [train, str(w), name, f"{statistics.median(seconds[name]):.3f}", f"{peak:.1f}"]
        if name == "exact":
            rows.append([*head, "-", f"{spread(paired(seconds[name], seconds['bare']))} of bare"])
            continue
        gain = paired(seconds["exact"], seconds[name])
        rows.append([*head, spread(gain), spread(paired(gain, models[name]))])
    return rows


def whole_rows(train: str, w: int, repeats: int) -> list[list[str]]:
    """Whole optimizer steps: rollout, scores, gradient, update."""
    variants = {
        "exact": "estimator={use='exact'}",
        "jagg 0.6": ROUTED.format(w=w, routed="0.6", middle="recompute"),
        "jagg 1.0": ROUTED.format(w=w, routed="1.0", middle="recompute"),
        "jagg 1.0, cached": ROUTED.format(w=w, routed="1.0", middle="cached"),
    }
    steps = {4: 21, 5: 21, 8: 25}[w]
    trainers = {name: trainer_of(train, steps, text) for name, text in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        order = list(trainers.items())
        for name, trainer in order if repeat % 2 else reversed(order):
            spent = timed(lambda t=trainer, i=repeat + 1: t.step(i))
            if repeat:
                seconds[name].append(spent)
    rows = []
    for name in variants:
        gain = paired(seconds["exact"], seconds[name])
        rows.append([train, str(w), name, f"{statistics.median(seconds[name]):.3f}", spread(gain)])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--train", nargs="*", default=["full", "lora"])
    parser.add_argument("--windows", nargs="*", type=int, default=[4, 5, 8])
    parser.add_argument("--parts", nargs="*", default=["stage", "whole"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = ["training", "W", "estimator", "s", "peak MB", "exact over it", "over the cost model"]
    rows = [
        row
        for train in options.train
        for w in options.windows
        if "stage" in options.parts
        for row in stage_rows(train, w, options.repeats)
    ]
    print("Update stage, one group of W steps\n")
    print_table(head, rows)
    rows = [
        row
        for train in options.train
        for w in options.windows
        if "whole" in options.parts
        for row in whole_rows(train, w, options.repeats)
    ]
    print("\nWhole optimizer steps (W = 4 and 5: 20 trained steps; W = 8: 24)\n")
    print_table(["training", "W", "estimator", "s", "exact over it"], rows)


if __name__ == "__main__":
    main()
