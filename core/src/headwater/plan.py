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

from headwater.composition import Run
from headwater.counting import CountedBackbone
from headwater.engine import Engine
from headwater.geometry import draws_of, indices_seed, micro_batches, optimizer_steps
from headwater.randomness import generator_of
from headwater.rollout import RolloutLoop
from headwater.types import Batch, Prompt, Request, Rollout, Surrogate


@attrs.frozen
class Work:
    """Network forwards and backwards, summed over samples."""

    rollout: int
    """Forwards of sampling."""
    surrogate: int
    """Forwards of building surrogates."""
    engine: int
    """Forwards of the engine."""
    backwards: int

    @property
    def forwards(self) -> int:
        """All forwards."""
        return self.rollout + self.surrogate + self.engine


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


def plan(run: Run) -> dict[str, Any]:
    """Geometry and work of a run, ready for JSON."""
    file = run.file
    every = [step_work(run, index) for index in range(file.steps)]
    draws = draws_of(file, run.prompts, 0)
    evaluations = 0
    if run.evaluation_prompts:
        stops = {0, file.steps, *range(0, file.steps + 1, file.evaluation.every)}
        evaluations = len(stops)
    each = run.backbone.plugin.network_evaluations(file.rollout.guidance)[0]
    steps = file.evaluation.steps or file.rollout.steps
    return {
        "name": file.name,
        "optimizer_steps": optimizer_steps(file),
        "prompts_per_step": file.prompts.per_step,
        "group": file.prompts.group,
        "samples_per_step": len(draws),
        "micro_batches_per_step": len(micro_batches(draws, file.prompts.micro_batch)),
        "rollout_steps": file.rollout.steps,
        "network_evaluations_per_velocity": each,
        "per_step": {
            "rollout_forwards": _spread([work.rollout for work in every]),
            "surrogate_forwards": _spread([work.surrogate for work in every]),
            "engine_forwards": _spread([work.engine for work in every]),
            "backwards": _spread([work.backwards for work in every]),
        },
        "total": {
            "forwards": sum(work.forwards for work in every),
            "backwards": sum(work.backwards for work in every),
        },
        "evaluation": {
            "evaluations": evaluations,
            "prompts": len(run.evaluation_prompts),
            "forwards": evaluations * len(run.evaluation_prompts) * steps * each,
        },
    }


def _spread(values: Sequence[int]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}


def step_work(run: Run, index: int) -> Work:
    """Work of one optimizer step; every micro-batch of a part has the same groups."""
    file = run.file
    draws = draws_of(file, run.prompts, index)
    silent = _Silent(run.backbone.plugin.network_evaluations(file.rollout.guidance))
    backbone = CountedBackbone(silent, file.rollout.guidance)
    hook = run.manager([RolloutLoop(), Engine(backbone)]).hook
    rollout = _zeros(run)
    surrogate_forwards = engine = backwards = 0
    for part in range(file.estimator.core["draws"]):
        samples = sum(draw.part == part for draw in draws)
        before = backbone.forwards
        generator = generator_of(*indices_seed(file, index, part))
        made: Surrogate = hook.build_surrogate(
            backbone=backbone, rollout=rollout, generator=generator
        )
        surrogate_forwards += (backbone.forwards - before) * samples
        active = sum(len(group.active) for group in made.groups) * len(made.rollout.batch)
        engine += active * samples * backbone.network_forwards
        backwards += active * samples * backbone.network_backwards
    sampling = len(draws) * file.rollout.steps * backbone.network_forwards
    return Work(sampling, surrogate_forwards, engine, backwards)


def _zeros(run: Run) -> Rollout:
    """One sample of one number, on the real sigma grid."""
    table, plugin = run.file.rollout, run.backbone.plugin
    shape = plugin.shape(Request(table.height, table.width))
    batch = Batch((Prompt(""),), None, (0,), (0,), table.height, table.width, table.steps)
    states = torch.zeros(table.steps + 1, 1, 1)
    return Rollout(batch, states, plugin.sigmas(table.steps, shape), states[:-1])
