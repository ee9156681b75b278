"""Every estimator's gradient beside the exact one on the tiny model: the tables of docs/lab.md.

Each block of estimators is one `headwater compare --json` in a process of its own, one thread; a
block whose JSON is in the work folder is not repeated, so the script may be stopped and started
again. All blocks of one reference are measured on the same rollouts.

    python bench/lab.py --work FOLDER [--docs docs] [--only BLOCK ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import lab_report

HERE = Path(__file__).parent
HAT = (
    "surrogate{weights='hat',split='uniform',coupling=0.1,"
    "active={place='late-biased',count=4,late_bias=1.0}}"
)
ENDPOINT = ["--rollouts", "8", "--draws", "8", "--seed", "11"]
FEWER = ["--rollouts", "6", "--draws", "8", "--seed", "11", "--no-by-step"]
"""The first six of the same rollouts."""
POLICY = ["--rollouts", "6", "--draws", "1", "--seed", "11", "--set", "prompts.per_step=4"]
JAGG = [
    "exact",
    "jagg",
    "jagg{routed=1.0}",
    "jagg{routed=1.0,nodes=[0,2]}",
    "jagg{routed=1.0,basis='nearest',nodes=[0,2]}",
    "jagg{routed=1.0,basis='calibrated'}",
    "jagg{routed=1.0,interpolate='none'}",
    "jagg{routed=1.0,interpolate='sum'}",
]
LONGER = [*POLICY, "--set", "rollout.steps=17"]
"""Sixteen trained steps: four groups of W = 4, two of W = 8."""
PLACED = [
    "exact",
    *("jagg{routed=1.0}", "jagg{routed=1.0,basis='nearest',nodes=[0,2]}"),
    "jagg{routed=1.0,basis='calibrated'}",
    *("jagg-kriging", "jagg-kriging{basis='kriging'}"),
    "jagg{window=8,routed=1.0}",
    *(
        f"jagg{{window=8,routed=1.0,basis='{basis}',nodes=[1,6]}}"
        for basis in ("linear", "nearest")
    ),
    "jagg{window=8,routed=1.0,basis='calibrated'}",
    "jagg{window=8,routed=1.0,basis='calibrated',nodes=[1,6]}",
    *("jagg-kriging{window=8}", "jagg-kriging{window=8,basis='kriging'}"),
]
BLOCKS: dict[str, tuple[str, list[str], list[str]]] = {
    "estimators": (
        "base.toml",
        ENDPOINT,
        [
            *("bptt", "draft-k", "draft-k{k=5}", "draft-lv", "refl", "drtune", "leapalign"),
            *("flowbp-sparse", "flowbp-bridge", "flowbp-lagrange", HAT),
        ],
    ),
    "dance-sde": ("policy.toml", POLICY, JAGG),
    "flow-sde": (
        "policy.toml",
        [*POLICY, "--set", "dynamics={use='flow-sde',noise_level=0.7}"],
        JAGG,
    ),
    "coupling": (
        "base.toml",
        FEWER,
        [
            *(f"leapalign{{coupling={a}}}" for a in (0.0, 0.1, 0.3, 0.5, 1.0)),
            *(f"flowbp-lagrange{{coupling={a}}}" for a in (0.0, 0.1, 0.3, 1.0)),
        ],
    ),
    "leaps": (
        "base.toml",
        FEWER,
        [
            *("leapalign{leaps=1}", "leapalign{leaps=3}", "leapalign{similarity_weights=false}"),
            *("leapalign{range=[0.0,0.5]}", "leapalign{range=[0.5,1.0]}"),
        ],
    ),
    "endpoints": (
        "base.toml",
        FEWER,
        [
            *("refl{endpoint='sample'}", "drtune{endpoint='sample'}"),
            "draft-lv{endpoint='sample'}",
        ],
    ),
    "connectors": (
        "base.toml",
        FEWER,
        [f"flowbp-lagrange{{order={order}}}" for order in (1, 2, 3, 4)],
    ),
    "hats": (
        "base.toml",
        FEWER,
        [
            *("flowbp-hat", "flowbp-hat{coupling=0.0}", "flowbp-hat{coupling=1.0}"),
            "flowbp-hat{place='late-biased',late_bias=1.0}",
            "flowbp-hat{k=8}",
            *("flowbp-sparse{k=4,late_bias=0.0}", "flowbp-sparse{k=4,late_bias=0.0,rescale=0.0}"),
            "flowbp-bridge{k=4,late_bias=0.0,coupling=0.3}",
        ],
    ),
    "chains": (
        "base.toml",
        FEWER,
        [
            *(f"flowbp-chain{{k={k}}}" for k in (2, 3, 8)),
            *("flowbp-chain", "flowbp-chain{coupling=0.3}", "flowbp-chain{coupling=0.0}"),
            *("leapalign{coupling=1.0}", "leapalign{leaps=3,coupling=1.0}", "flowbp-lagrange"),
            *("flowbp-hat{coupling=1.0}", "flowbp-hat{k=8,coupling=1.0}"),
            "flowbp-bridge{k=4,late_bias=0.0,coupling=1.0}",
            "flowbp-sparse{k=4,late_bias=0.0}",
        ],
    ),
    "placed dance-sde": ("policy.toml", LONGER, PLACED),
    "placed flow-sde": (
        "policy.toml",
        [*LONGER, "--set", "dynamics={use='flow-sde',noise_level=0.7}"],
        PLACED,
    ),
}


def measured(block: str, work: Path) -> None:
    """Run a block that has no JSON yet."""
    file, options, estimators = BLOCKS[block]
    out = work / f"{block}.json"
    if out.exists():
        return
    command = [sys.executable, "-m", "headwater", "compare", str(HERE / file), "--json"]
    done = subprocess.run(
        [*command, *options, "--estimators", ",".join(estimators)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    half = out.with_suffix(".part")
    half.write_text(done.stdout)
    half.rename(out)


def main() -> None:
    """Measure what is missing, then write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--docs", type=Path, help="Folder for the pictures.")
    parser.add_argument("--only", nargs="*", choices=list(BLOCKS))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for block in options.only or BLOCKS:
        measured(block, options.work)
    found = {
        block: json.loads((options.work / f"{block}.json").read_text())
        for block in BLOCKS
        if (options.work / f"{block}.json").exists()
    }
    print(lab_report.tables(found))
    if options.docs:
        lab_report.pictures(found, options.docs)


if __name__ == "__main__":
    main()
