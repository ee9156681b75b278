"""The geometry of a run: which samples an optimizer step draws, and with which seeds.

Only the run file decides it. Micro-batches cut the samples for memory, and change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import attrs

from headwater.randomness import generator_of, seed_of
from headwater.tables import RunFile
from headwater.types import Prompt


@attrs.frozen(eq=False)
class Draw:
    """One sample to be drawn."""

    prompt: Prompt
    group: int
    """Position of its prompt among all prompts of the rollout."""
    seed: int
    part: int
    """Which of the step's index draws it belongs to."""


def draws_of(file: RunFile, prompts: Sequence[Prompt], rollout: int) -> list[Draw]:
    """The samples of a rollout, prompt by prompt, `group` of each."""
    count = file.prompts.per_step * file.algorithm.core["updates"]
    per_part = file.prompts.per_step // file.estimator.core["draws"]
    out = []
    for position in range(count):
        index = _stream(file.seed, len(prompts), rollout * count + position)
        for sample in range(file.prompts.group):
            seed = seed_of(file.seed, "noise", rollout, position, sample)
            out.append(Draw(prompts[index], position, seed, position // per_part))
    return out


def optimizer_steps(file: RunFile) -> int:
    """Optimizer steps of the whole run; a skipped update counts."""
    return file.steps


def micro_batches(draws: Sequence[Draw], size: int) -> list[list[Draw]]:
    """Cut into at most `size` samples, never across a part."""
    out: list[list[Draw]] = []
    for draw in draws:
        if not out or len(out[-1]) == size or out[-1][-1].part != draw.part:
            out.append([])
        out[-1].append(draw)
    return out


def indices_seed(file: RunFile, step: int, part: int) -> tuple[int | str, ...]:
    """Seed parts of the generator an estimator draws from."""
    return (file.seed, "indices", step, part)


def _stream(seed: int, length: int, index: int) -> int:
    """Prompt `index` of an endless stream: the whole list, shuffled anew each pass."""
    return _order(seed, length, index // length)[index % length]


@lru_cache(maxsize=2)
def _order(seed: int, length: int, epoch: int) -> list[int]:
    import torch

    order: list[int] = torch.randperm(
        length, generator=generator_of(seed, "prompts", epoch)
    ).tolist()
    return order
