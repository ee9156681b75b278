"""Learning curves of the policy-gradient estimators on the tiny model, three seeds.

Same seeds, prompts, noise and number of updates; only the estimator differs. Settings are those
of bench/policy.toml, chosen on seed 100 with the exact estimator. Resumable: a run that has a
summary is not repeated. Seconds an update are measured afterwards, the estimators interleaved in
one process, since runs side by side disturb each other's clocks.

    python bench/learning.py --work FOLDER [--out docs/policy-table.md] [--plot docs/policy.png]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from runs import change_cells, run_all

from headwater.composition import compose
from headwater.stage import open_stage
from headwater.trainer import Trainer

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
ESTIMATORS = {
    "exact": "estimator={use='exact'}",
    "jagg 0.6": "estimator={use='jagg'}",
    "jagg 0.6, cached": "estimator={use='jagg',middle='cached'}",
    "jagg calibrated, all": "estimator={use='jagg',basis='calibrated',routed=1.0}",
    "no interpolation": "estimator={use='jagg',interpolate='none'}",
}


def load(out: Path) -> dict[str, Any]:
    """Summary, and evaluations by step."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "evaluation/preference" in line]
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    summary["curve"] = {
        line["step"]: (line["evaluation/preference"], line["evaluation/detector"])
        for line in evaluations
    }
    return summary


def update_seconds(repeats: int) -> dict[str, float]:
    """Median seconds of an optimizer step of each estimator, interleaved, one thread."""
    torch.set_num_threads(1)
    trainers = {
        name: Trainer(open_stage(compose(HERE / "policy.toml", [text]), "cpu"))
        for name, text in ESTIMATORS.items()
    }
    spent: dict[str, list[float]] = {name: [] for name in trainers}
    for index in range(repeats + 1):
        order = list(trainers.items())
        for name, trainer in order if index % 2 else reversed(order):
            began = time.perf_counter()
            trainer.step(index)
            if index:  # the first step of a calibrated run measures; see the note in docs
                spent[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in spent.items()}


def mean_curve(runs: Sequence[dict[str, Any]], which: int) -> dict[int, float]:
    """Mean over seeds of the reward (0) or the detector (1), by step."""
    steps = runs[0]["curve"]
    return {s: sum(run["curve"][s][which] for run in runs) / len(runs) for s in steps}


def time_to(runs: Sequence[dict[str, Any]], level: float, seconds: float) -> str:
    """Training seconds until the mean curve reaches a level, at the evaluations."""
    for step, value in mean_curve(runs, 0).items():
        if value >= level:
            return f"{step * seconds:.0f} (step {step})"
    return "not reached"


def row_of(name: str, runs: Sequence[dict[str, Any]], level: float, seconds: float) -> list[str]:
    """A line of the table."""
    cells = [name]
    for parts in ([r["reward"] for r in runs], [r["held_out"]["detector"] for r in runs]):
        cells += change_cells(parts)
    cells.append(f"{seconds:.2f}")
    cells.append(time_to(runs, level, seconds))
    cells.append(f"{runs[0]['forwards']} / {runs[0]['backwards']}")
    return cells


HEAD = [
    "estimator",
    "reward before",
    "after",
    "change, paired (by seed)",
    "detector before",
    "after",
    "change, paired (by seed)",
    "s an update",
    "s to exact's reward",
    "forwards / backwards",
]


def plot(found: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Mean curves of reward and detector, the seeds as thin lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for which, title in enumerate(("tiny-preference", "tiny-detector (not trained on)")):
        for number, (name, runs) in enumerate(found.items()):
            color = f"C{number}"
            mean = mean_curve(runs, which)
            panels[which].plot(list(mean), list(mean.values()), color=color, label=name)
            for run in runs:
                steps = list(run["curve"])
                values = [run["curve"][s][which] for s in steps]
                panels[which].plot(steps, values, color=color, alpha=0.25, linewidth=0.7)
        panels[which].set(title=title, xlabel="optimizer step")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run what is missing and write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=8, help="Timed updates of each estimator.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    folders = {
        name: [options.work / f"{number}-{seed}" for seed in SEEDS]
        for number, name in enumerate(ESTIMATORS)
    }
    jobs = [
        (folders[name][k], [ESTIMATORS[name], f"seed={seed}"])
        for k, seed in enumerate(SEEDS)
        for name in ESTIMATORS
    ]
    run_all(HERE / "policy.toml", jobs)
    found = {
        name: [load(out) for out in outs]
        for name, outs in folders.items()
        if all((out / "summary.json").exists() for out in outs)
    }
    seconds = update_seconds(options.repeats)
    exact = mean_curve(found["exact"], 0)
    level = exact[max(exact)]
    rows = [row_of(name, runs, level, seconds[name]) for name, runs in found.items()]
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
