"""Every estimator on the tiny model, three seeds: reward, detector, seconds, peak memory.

Two runs at a time, one thread each; a run that already has a summary in the work folder is not
repeated, so the script may be stopped and started again. Learning rate, margin and everything
else but the estimator are those of bench/table.toml, chosen beforehand on another seed.

    python bench/table.py --work FOLDER [--out docs/estimators-table.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from runs import change_cells, run_all, settings_of_run

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
HAT = (
    'estimator={use="surrogate",draws=4,weights="hat",split="uniform",coupling=0.1,'
    'active={place="late-biased",count=4,late_bias=1.0}}'
)
ESTIMATORS: dict[str, str] = {
    **{
        name: f"estimator.use={name}"
        for name in (
            "bptt",
            "draft-k",
            "draft-lv",
            "refl",
            "drtune",
            "leapalign",
            "flowbp-sparse",
            "flowbp-bridge",
            "flowbp-lagrange",
        )
    },
    "surrogate (hat)": HAT,
}


def row_of(name: str, summaries: Sequence[dict]) -> list[str]:
    """A line of the table."""
    cells = [f"`{name}`"]
    for path in (("reward",), ("held_out", "detector")):
        parts = []
        for summary in summaries:
            found = summary
            for key in path:
                found = found[key]
            parts.append(found)
        cells += change_cells(parts)
    seconds = [s["seconds_per_step"] for s in summaries]
    cells.append(f"{sum(seconds) / len(seconds):.2f}")
    cells.append(f"{max(s['peak_memory_bytes'] for s in summaries) / 1e6:.1f}")
    cells.append(f"{summaries[0]['backwards'] / summaries[0]['samples']:.1f}")
    return cells


def load(out: Path) -> dict:
    """A summary, and the median seconds of a step from the metrics."""
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = sorted(line["seconds"] for line in lines if "seconds" in line)
    summary["seconds_per_step"] = steps[len(steps) // 2]
    per_step = settings_of_run(out)["prompts"]["per_step"]
    summary["samples"] = summary["steps"] * per_step
    return summary


HEAD = [
    "estimator",
    "reward before",
    "after",
    "change, paired (by seed)",
    "detector before",
    "after",
    "change, paired (by seed)",
    "s a step",
    "peak MB",
    "backwards a sample",
]


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(ESTIMATORS))
    options = parser.parse_args()
    names = options.only or list(ESTIMATORS)
    jobs = [(n, s, options.work / f"{n.replace(' ', '-')}-{s}") for s in SEEDS for n in names]
    run_all(HERE / "table.toml", [(out, [ESTIMATORS[n], f"seed={s}"]) for n, s, out in jobs])
    rows = []
    for name in names:
        folders = [out for n, _, out in jobs if n == name and (out / "summary.json").exists()]
        if len(folders) == len(SEEDS):
            rows.append(row_of(name, [load(out) for out in folders]))
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
