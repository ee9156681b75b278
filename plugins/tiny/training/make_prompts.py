"""Write the prompt lists: 540 for evaluation, 90 a category, and 2,200 others for training."""

from __future__ import annotations

from pathlib import Path

import torch

from headwater_tiny.grammar import CATEGORIES, describe, sample_scene

EVAL = 90
TRAIN = {
    "single_object": 350,
    "two_object": 150,
    "counting": 350,
    "colors": 150,
    "position": 600,
    "color_attr": 600,
}
FOLDER = Path(__file__).parent.parent / "src" / "headwater_tiny" / "prompts"


def main() -> None:
    """Draw distinct prompts of every category, in a mixed order."""
    generator = torch.Generator().manual_seed(0)
    lists: dict[str, list[str]] = {"eval": [], "train": []}
    for category in CATEGORIES:
        texts: dict[str, None] = {}
        while len(texts) < EVAL + TRAIN[category]:
            texts[describe(sample_scene(generator, category))] = None
        found = list(texts)
        lists["eval"] += found[:EVAL]
        lists["train"] += found[EVAL:]
    for name, texts in lists.items():
        order = torch.randperm(len(texts), generator=generator).tolist()
        (FOLDER / f"{name}.txt").write_text("".join(texts[i] + "\n" for i in order))


if __name__ == "__main__":
    main()
