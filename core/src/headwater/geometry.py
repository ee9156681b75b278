"""The geometry of a run: which samples an optimizer step draws, and with which seeds.

Only the run file decides it. Micro-batches and processes cut the samples for memory and speed,
and change nothing. A rollout serves `updates * epochs` optimizer steps: its prompts are dealt to
`updates` equal shares, and each pass over them uses every share once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import attrs

from headwater.faults import CheckedDynamics, blamed
from headwater.randomness import generator_of, seed_of
from headwater.tables import RunFile
from headwater.types import Prompt

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.frozen(eq=False)
class Draw:
    """One sample to be drawn."""

    prompt: Prompt
    group: int
    """Position of its prompt among all prompts of the rollout."""
    seed: int
    part: int
    """Which of the rollout's index draws it belongs to: share times `draws`, and draw."""
    start_seed: int | None = None
    """Seed of the starting noise, where samples share it."""


@attrs.frozen
class Position:
    """Where an optimizer step stands in its rollout."""

    rollout: int
    first: int
    """First optimizer step of the rollout."""
    share: int
    """Which share of the rollout's prompts the step uses."""


def position_of(file: RunFile, step: int) -> Position:
    """Rollout, its first step and the share of optimizer step `step`."""
    updates = file.algorithm.core["updates"]
    cycle = updates * file.algorithm.core["epochs"]
    first = step - step % cycle
    return Position(step // cycle, first, (step - first) % updates)


def draws_of(
    file: RunFile, prompts: Sequence[Prompt], rollout: int, *, shared_start: bool = False
) -> list[Draw]:
    """The samples of a rollout, prompt by prompt, `group` of each.

    shared_start: all samples of a prompt start from one noise.
    """
    count = file.prompts.per_step * file.algorithm.core["updates"]
    per_part = file.prompts.per_step // file.estimator.core["draws"]
    out = []
    for position in range(count):
        index = _stream(file.seed, len(prompts), rollout * count + position)
        start = seed_of(file.seed, "start", rollout, position) if shared_start else None
        for sample in range(file.prompts.group):
            seed = seed_of(file.seed, "noise", rollout, position, sample)
            out.append(Draw(prompts[index], position, seed, position // per_part, start))
    return out


def rollout_draws(run: Run, rollout: int) -> list[Draw]:
    """`draws_of` as the run's algorithm wants them."""
    shared = bool(getattr(run.algorithm.plugin, "shared_start_noise", False))
    return draws_of(run.file, run.prompts, rollout, shared_start=shared)


def share_of(draws: Sequence[Draw], rank: int, world: int) -> list[Draw]:
    """What process `rank` of `world` draws; see `positions_of`."""
    return [draws[i] for i in positions_of(draws, rank, world)]


def positions_of(draws: Sequence[Draw], rank: int, world: int) -> list[int]:
    """Which of the draws are process `rank`'s of `world`: an equal run of every part.

    ValueError where a part cannot be cut into `world` equal pieces: every process must do the
    same evaluations.
    """
    out: list[int] = []
    for part in sorted({draw.part for draw in draws}):
        members = [i for i, draw in enumerate(draws) if draw.part == part]
        if len(members) % world:
            raise ValueError(
                f"{len(members)} samples that share an index draw cannot be dealt to {world} "
                f"processes; make [prompts] per_step * group / draws a multiple of it, "
                f"{neighbours(len(members), world)}"
            )
        size = len(members) // world
        out += members[rank * size : (rank + 1) * size]
    return out


def neighbours(value: int, factor: int) -> str:
    """The multiples of `factor` next to a value that is none: `4 or 6`; never 0."""
    below = value // factor * factor
    return f"{below} or {below + factor}" if below else str(factor)


@attrs.frozen
class Schedule:
    """The steps of one update's rollout that are noisy, and those that are trained."""

    stochastic: tuple[int, ...]
    trained: tuple[int, ...]


def schedule_of(run: Run, step: int) -> Schedule:
    """Stochastic and trained steps of optimizer step `step`.

    A step whose standard deviation is 0 is deterministic: it is neither scored nor trained.
    ValueError where a trained step is not stochastic, or none is left.
    """
    algorithm, n = run.algorithm.plugin, run.file.rollout.steps
    first = position_of(run.file, step).first
    generator = generator_of(run.file.seed, "trained", step)
    with blamed(run.algorithm, "its choice of steps"):
        stochastic = tuple(algorithm.stochastic_steps(first, n))
        chosen = sorted(algorithm.trained_steps(first, n, generator))
    who = f"[{run.algorithm.key}] ({run.algorithm.entry.title})"
    absent = sorted({*stochastic, *chosen} - set(range(n)))
    if absent:
        raise ValueError(f"{who}: steps {absent} are not among the {n} of a rollout")
    if algorithm.upstream != "per-step":
        return Schedule(stochastic, tuple(chosen))
    outside = sorted(set(chosen) - set(stochastic))
    if outside:
        raise ValueError(f"{who}: steps {outside} are trained but not stochastic")
    trained = tuple(i for i in chosen if _std(run, i) > 0)
    if not trained:
        raise ValueError(f"{who}: no step of a rollout of {n} is stochastic and trained")
    return Schedule(stochastic, trained)


def _std(run: Run, i: int) -> float:
    """Standard deviation of step i, which depends on the sigma grid alone."""
    import torch

    from headwater.types import Request

    table, plugin = run.file.rollout, run.backbone.plugin
    sigmas = plugin.sigmas(table.steps, plugin.shape(Request(table.height, table.width)))
    zero = torch.zeros(1, 1)
    return CheckedDynamics(run.dynamics).transition(zero, zero, i, sigmas).std


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
    """Seed parts of the generator an estimator draws from, in optimizer step `step`."""
    return (file.seed, "indices", step, part % file.estimator.core["draws"])


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
