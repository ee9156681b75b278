"""Held-out prompts with fixed noise: the same samples before, during and after training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import torch
from torch import Tensor

from headwater import processes
from headwater.composition import Run
from headwater.errors import GuardError
from headwater.faults import check_images
from headwater.geometry import Draw
from headwater.images import save_grid
from headwater.randomness import seed_of
from headwater.stage import Stage
from headwater.statistics import estimate, paired


@attrs.frozen(eq=False)
class Evaluated:
    """The scores of every evaluation prompt, and the first images."""

    scores: Mapping[str, list[float]]
    """KEY, trained rewards and held-out ones: one value a prompt."""
    total: list[float]
    """Weighted total of the trained rewards."""
    images: Tensor
    """(I, 3, H, W) of the first prompts."""

    def check_finite(self, run: Run) -> None:
        """GuardError names the first score that is not finite."""
        for key, values in self.scores.items():
            bad = [i for i, value in enumerate(values) if not math.isfinite(value)]
            if bad:
                raise GuardError(
                    f"evaluation: reward {key!r} is {values[bad[0]]} for {len(bad)} of "
                    f"{len(values)} prompts, first for {run.evaluation_prompts[bad[0]].text!r}"
                )

    def metrics(self) -> dict[str, float]:
        """`evaluation/KEY` and its standard error."""
        out = {}
        for key, values in {**self.scores, "total": self.total}.items():
            found = estimate(values)
            out[f"evaluation/{key}"] = found.mean
            out[f"evaluation/{key}_se"] = found.se
        return out

    def changes(self, before: Evaluated) -> dict[str, float]:
        """`change/KEY` since an evaluation of the same prompts, and its paired standard error."""
        out = {}
        old, new = {**before.scores, "total": before.total}, {**self.scores, "total": self.total}
        for key in new:
            found = paired(old[key], new[key])
            out[f"change/{key}"] = found.mean
            out[f"change/{key}_se"] = found.se
        return out


def pack(evaluated: Evaluated) -> dict[str, Tensor]:
    """As tensors for a checkpoint: scores bit for bit, images as the pictures show them."""
    scores = {**{f"score/{k}": v for k, v in evaluated.scores.items()}, "total": evaluated.total}
    out = {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()}
    pixels = (evaluated.images.clamp(0, 1) * 255).round().to(torch.uint8)
    return {**out, "images": pixels}


def unpack(tensors: Mapping[str, Tensor]) -> Evaluated:
    """Back from `pack`."""
    start = "score/"
    scores = {n.removeprefix(start): t.tolist() for n, t in tensors.items() if n.startswith(start)}
    return Evaluated(scores, tensors["total"].tolist(), tensors["images"].float() / 255)


def evaluation_draws(run: Run) -> list[Draw]:
    """One sample a prompt, its noise fixed for the run's seed."""
    return [
        Draw(prompt, i, seed_of(run.file.seed, "evaluation", i), part=0)
        for i, prompt in enumerate(run.evaluation_prompts)
    ]


def never() -> bool:
    """Nobody asks."""
    return False


@torch.no_grad()
def evaluate(
    stage: Stage, draws: list[Draw], batch: int, stopped: Callable[[], bool] = never
) -> Evaluated | None:
    """Sample and score all evaluation prompts, `batch` at a time.

    stopped: asked before each batch; if it is true, the evaluation is given up: None.
    """
    run = stage.run
    every = {**run.rewards, **run.held_out}
    scores: dict[str, list[float]] = {key: [] for key in every}
    images: list[Tensor] = []
    size = math.ceil(len(draws) / processes.world())
    begin = processes.rank() * size
    # All processes sample equally many: the last ones repeat a prompt and drop it again.
    own = [draws[min(i, len(draws) - 1)] for i in range(begin, begin + size)]
    for start in range(0, size, batch):
        if processes.anywhere(stopped()):
            return None
        rollout = stage.sample(own[start : start + batch], 0, run.file.evaluation.steps)
        decoded = stage.backbone.decode(rollout.state(rollout.steps))
        check_images(decoded, run.backbone)
        for key, values in stage.score(decoded, rollout.batch, every).items():
            scores[key] += values.double().tolist()
        if begin + start < run.file.output.images:
            images.append(decoded[: run.file.output.images - begin - start].float().cpu())
    scores = {
        key: [value for part in processes.gathered(own) for value in part][: len(draws)]
        for key, own in scores.items()
    }
    images = [image for part in processes.gathered(images) for image in part]
    weights = {key: table.core["weight"] for key, table in run.file.rewards.items()}
    total = [sum(weights[key] * scores[key][i] for key in run.rewards) for i in range(len(draws))]
    return Evaluated(scores, total, torch.cat(images)[: len(draws)] if images else torch.empty(0))


def picture(evaluated: Evaluated, run: Run, path: Path) -> Path | None:
    """Write the sample grid of an evaluation; None where no image was asked for."""
    if not len(evaluated.images):
        return None
    captions = [prompt.text for prompt in run.evaluation_prompts[: len(evaluated.images)]]
    save_grid(path, evaluated.images, captions)
    return path
