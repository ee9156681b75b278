"""How several processes begin one run: what must fit, who makes the folder, who reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from accelerate import PartialState

from headwater import processes, run_folder, zero
from headwater.composition import Run
from headwater.errors import InputError
from headwater.geometry import neighbours, position_of, positions_of, rollout_draws
from headwater.resume import Candidates, Point, identity
from headwater.tables import RunFile


def start() -> PartialState:
    """This process among those launched. InputError where a library for them is missing."""
    zero.check_installed()
    return PartialState()


def check(run: Run) -> None:
    """InputError where the processes have different runs, or the geometry does not divide."""
    world = processes.world()
    if world == 1:
        return
    processes.same(json.dumps(attrs.asdict(identity(run)), sort_keys=True), "the run")
    problems = []
    try:
        positions_of(rollout_draws(run, 0), processes.rank(), world)
    except ValueError as error:
        problems.append(str(error))
    cycle = _cycle(run.file)
    ends = {
        "steps": run.file.steps,
        "evaluation.every": run.file.evaluation.every,
        "output.checkpoint_every": run.file.output.checkpoint_every,
    }
    problems += [
        f"{key} = {value}: with {world} processes it must be a multiple of updates * epochs = "
        f"{cycle} ({neighbours(value, cycle)}), since each process holds only its share of a "
        f"rollout"
        for key, value in ends.items()
        if value % cycle
    ]
    processes.on_first(lambda: _refuse(world, problems))


def _refuse(world: int, problems: list[str]) -> None:
    if problems:
        raise InputError(f"launch of {world} processes", problems)


def may_stop(file: RunFile, done: int) -> bool:
    """Whether a run of several processes may be left here: between two rollouts."""
    return processes.world() == 1 or position_of(file, done).first == done


@contextmanager
def folder_of(run: Run, out: str | Path | None, *, resume: bool) -> Iterator[Path]:
    """The run folder, made or found and held by the first process alone."""

    def prepared() -> Path:
        return run_folder.old_folder(out) if resume else run_folder.new_folder(run, out)

    folder = processes.on_first(prepared)
    if not processes.first():
        yield folder
        return
    with run_folder.held(folder):
        yield folder


@contextmanager
def loading(folder: Path, *, resume: bool) -> Iterator[None]:
    """Within it weights load. Where that fails a new folder is given back: nothing began."""
    try:
        yield
    except BaseException:
        if processes.first() and not resume:
            run_folder.give_back(folder)
        raise


def opened(found: Candidates) -> Iterator[Point]:
    """The checkpoints to go on from; the first process makes the folder ready for the others."""
    made: list[Iterator[Point]] = []
    processes.on_first(lambda: made.append(found.open()))
    return made[0] if made else iter(found)


def _cycle(file: RunFile) -> int:
    """Optimizer steps of a rollout."""
    return int(file.algorithm.core["updates"] * file.algorithm.core["epochs"])
