"""What a run will do, from configuration alone: geometry and network work.

Nothing is estimated. Every index draw of the run is repeated on a rollout of zeros with a
backbone that only counts, so that forwards and backwards are those of the run itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater import footprint
from headwater.composition import Run
from headwater.counting import CountedBackbone
from headwater.engine import Engine, Mode
from headwater.errors import HeadwaterError
from headwater.faults import (
    blamed,
    latent_shape,
    network_evaluations,
    note_failures,
    sigmas_fault,
)
from headwater.geometry import (
    indices_seed,
    micro_batches,
    optimizer_steps,
    position_of,
    rollout_draws,
    schedule_of,
)
from headwater.meta_stages import kinds_of
from headwater.randomness import generator_of
from headwater.rollout import RolloutLoop
from headwater.types import Batch, Prompt, Request, Rollout, Surrogate


@attrs.frozen
class Work:
    """Network forwards and backwards, summed over samples."""

    rollout: int
    """Forwards of sampling, at the first optimizer step of a rollout."""
    reference: int
    """Forwards of the reference model."""
    surrogate: int
    """Forwards of building surrogates."""
    engine: int
    """Forwards of the engine."""
    backwards: int

    @property
    def forwards(self) -> int:
        """All forwards."""
        return self.rollout + self.reference + self.surrogate + self.engine


class _Silent:
    """Stands for the network: its velocity is zero."""

    def __init__(self, evaluations: tuple[int, int]) -> None:
        self.evaluations = evaluations

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """Those of the real backbone."""
        return self.evaluations

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        """Zeros."""
        return torch.zeros_like(x)


def plan(run: Run, memory_modes: Sequence[Mode] = ()) -> dict[str, Any]:
    """Geometry, work and memory of a run, ready for JSON.

    memory_modes: engine modes whose memory is counted; without one, memory is None.
    """
    file = run.file
    planner = Planner(run)
    every = [planner.step(index) for index in range(file.steps)]
    updates, epochs = (file.algorithm.core[key] for key in ("updates", "epochs"))
    draws = rollout_draws(run, 0)
    schedule = schedule_of(run, 0)
    evaluations = 0
    if run.evaluation_prompts:
        stops = {0, file.steps, *range(0, file.steps + 1, file.evaluation.every)}
        evaluations = len(stops)
    each, each_backward = network_evaluations(run.backbone, file.rollout.guidance)
    memory = _memory(run, planner, memory_modes)
    total = {
        "forwards": sum(work.forwards for work in every),
        "backwards": sum(work.backwards for work in every),
    }
    if memory:
        flops = memory["flops"]
        work = total["forwards"] // each * flops["forward"]
        total["flops"] = work + total["backwards"] // each_backward * flops["backward"]
    steps = file.evaluation.steps or file.rollout.steps
    return {
        "name": file.name,
        "optimizer_steps": optimizer_steps(file),
        "prompts_per_step": file.prompts.per_step,
        "group": file.prompts.group,
        "groups_per_rollout": file.prompts.per_step * updates,
        "samples_per_rollout": len(draws),
        "optimizer_steps_per_rollout": updates * epochs,
        "samples_per_step": len(draws) // updates,
        "micro_batches_per_step": len(micro_batches(draws, file.prompts.micro_batch)) // updates,
        "rollout_steps": file.rollout.steps,
        "stochastic_steps": list(schedule.stochastic),
        "trained_steps": list(schedule.trained),
        "network_evaluations_per_velocity": each,
        "per_step": {
            "rollout_forwards": _spread([work.rollout for work in every]),
            "reference_forwards": _spread([work.reference for work in every]),
            "surrogate_forwards": _spread([work.surrogate for work in every]),
            "engine_forwards": _spread([work.engine for work in every]),
            "backwards": _spread([work.backwards for work in every]),
        },
        "total": total,
        "evaluation": {
            "evaluations": evaluations,
            "prompts": len(run.evaluation_prompts),
            "forwards": evaluations * len(run.evaluation_prompts) * steps * each,
        },
        "memory": memory,
    }


def _memory(run: Run, planner: Planner, modes: Sequence[Mode]) -> dict[str, Any] | None:
    if not modes:
        return None
    found = footprint.footprint(run, list(planner.surrogates.values()), modes)
    return footprint.memory(found, run.file.engine.mode)


def _spread(values: Sequence[int]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}


class Planner:
    """Repeats the decisions of a run, step by step from the first.

    An estimator may remember earlier steps, so one planner serves one run, in order.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        silent = _Silent(network_evaluations(run.backbone, run.file.rollout.guidance))
        self.backbone = CountedBackbone(silent, run.file.rollout.guidance)
        manager = run.manager([RolloutLoop(), Engine(self.backbone)])
        note_failures(manager, run)
        self.hook = manager.hook
        self.surrogates: dict[object, Surrogate] = {}
        """One surrogate of every kind that was planned."""
        self.referenced: set[tuple[int, int]] = set()
        """(share, step) of reference velocities that are cached already."""

    def step(self, index: int) -> Work:
        """Work of one optimizer step; every micro-batch of a part has the same groups."""
        run, file, backbone = self.run, self.run.file, self.backbone
        position, schedule = position_of(file, index), schedule_of(run, index)
        per_step = run.algorithm.plugin.upstream == "per-step"
        drawn = len(rollout_draws(run, position.rollout)) if index == position.first else 0
        samples = file.prompts.per_step * file.prompts.group // file.estimator.core["draws"]
        rollout = self._zeros(index)
        surrogate_forwards = engine = backwards = 0
        for part in range(file.estimator.core["draws"]):
            before = backbone.forwards
            generator = generator_of(*indices_seed(file, index, part))
            made: Surrogate | None = self.hook.build_surrogate(
                backbone=backbone, rollout=rollout, generator=generator
            )
            assert made is not None
            self.surrogates[kinds_of(made)] = made
            surrogate_forwards += (backbone.forwards - before) * samples
            active = sum(len(group.active) for group in made.groups)
            fresh = per_step and not made.cached_velocities
            evaluated = sum(len(group.steps) for group in made.groups) if fresh else active
            more, more_backwards = made.measurements
            copies = len(made.rollout.batch)
            measured = min(samples, file.prompts.micro_batch)  # the first micro-batch of a part
            each = evaluated * samples + more * measured
            engine += each * copies * backbone.network_forwards
            each = active * samples + more_backwards * measured
            backwards += each * copies * backbone.network_backwards
        sampling = drawn * file.rollout.steps * backbone.network_forwards
        reference = self._references(index, schedule.trained)
        return Work(sampling, reference, surrogate_forwards, engine, backwards)

    def _references(self, index: int, trained: Sequence[int]) -> int:
        """Forwards of the reference model: once a rollout for each step and sample."""
        run, file = self.run, self.run.file
        if getattr(run.algorithm.plugin, "reference_model", "none") == "none":
            return 0
        position = position_of(file, index)
        if index == position.first:
            self.referenced.clear()
        fresh = {(position.share, i) for i in trained} - self.referenced
        self.referenced |= fresh
        samples = file.prompts.per_step * file.prompts.group
        return len(fresh) * samples * self.backbone.network_forwards

    def _zeros(self, index: int) -> Rollout:
        """One sample of one number, on the real sigma grid."""
        table, plugin = self.run.file.rollout, self.run.backbone.plugin
        shape = latent_shape(self.run.backbone, Request(table.height, table.width))
        schedule = schedule_of(self.run, index)
        batch = Batch(
            prompts=(Prompt(""),),
            conditioning=None,
            seeds=(0,),
            group_ids=(0,),
            height=table.height,
            width=table.width,
            steps=table.steps,
            stochastic_steps=schedule.stochastic,
            trained_steps=schedule.trained,
            policy_version=index,
        )
        states = torch.zeros(table.steps + 1, 1, 1)
        first = position_of(self.run.file, index).first
        with blamed(self.run.backbone, "sigmas"):
            sigmas = plugin.sigmas(table.steps, shape)
            if fault := sigmas_fault(sigmas, table.steps):
                raise HeadwaterError(fault)
        return Rollout(batch, states, sigmas, states[:-1], policy_version=first)
