"""Samples of flow checkpoints on training prompts, graded by the demands they miss.

They show the preference scorer the mistakes a generator makes. Grade 1 for an image that is
right, 0 for one unmet demand, -1 for more; held-out prompts take no part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from evaluate import images_of, load_checkpoint
from train_flow import prompt_list

from headwater_tiny.detector import demands, look
from headwater_tiny.grammar import parse


def main() -> None:
    """Write `samples.pt`: images float16, grades, texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--count", type=int, default=1024, help="samples a checkpoint")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    texts, images = [], []
    for i, name in enumerate(options.checkpoints):
        model = load_checkpoint(options.work, name)
        prompts = prompt_list("train")[i * options.count % 2200 :][: options.count]
        texts += prompts
        images.append(images_of(model, prompts, 10_000_000 * (i + 1), options.steps, 2.0))
    found = torch.cat(images)
    grades = torch.tensor([grade(s, t) for s, t in zip(look(found), texts, strict=True)])
    saved = {"images": found.half(), "grades": grades, "texts": texts}
    torch.save(saved, options.work / "samples.pt")
    print(len(texts), "samples, mean grade", float(grades.mean()))


def grade(seen, text: str) -> float:
    """1, 0 or -1 for none, one or more unmet demands."""
    unmet = sum(not met for mets in demands(seen, parse(text)).values() for met in mets)
    return 1.0 - min(2, unmet)


if __name__ == "__main__":
    main()
