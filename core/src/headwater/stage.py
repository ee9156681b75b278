"""One micro-batch: from prompts to gradients, in the order of the design.

Endpoint upstream: rollout, surrogate, decode and score its endpoint with gradient, one
`autograd.grad` back to the endpoint, its graph freed, then the engine. Per-step upstream: the
rollout comes with its credit (see `collection`), then surrogate and engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pluggy
import torch
from torch import Tensor

from headwater import faults, processes, sharding
from headwater.composition import Named, Run
from headwater.counting import CountedBackbone
from headwater.engine import Engine, evaluate, run_groups
from headwater.errors import GuardError, HeadwaterError
from headwater.geometry import Draw, Schedule
from headwater.gradient_shares import Sizes, watched
from headwater.optimization import swapped
from headwater.protocols import LoadContext
from headwater.rollout import RolloutLoop
from headwater.types import (
    Batch,
    Credit,
    Diagnostics,
    Rollout,
    Scores,
    Surrogate,
    at_least_float32,
)


@attrs.frozen(eq=False)
class Stage:
    """The loaded plugins of a run and the calls between them."""

    run: Run
    manager: pluggy.PluginManager
    callers: Mapping[str, Any]
    """Reward key: its own `score` caller."""
    backbone: CountedBackbone

    @torch.no_grad()
    def sample(
        self,
        draws: Sequence[Draw],
        policy_version: int,
        steps: int = 0,
        schedule: Schedule | None = None,
    ) -> Rollout:
        """Draw samples and cache their trajectories.

        steps: 0 for the run file's. schedule: which of them are noisy; without one, none is.
        """
        batch = self.batch(draws, policy_version, steps, schedule)
        dynamics = faults.CheckedDynamics(self.run.dynamics)
        rollout: Rollout = self.manager.hook.sample_rollout(
            backbone=self.backbone, dynamics=dynamics, batch=batch
        )
        if not rollout.current:
            raise HeadwaterError(
                f"[{self.run.backbone.key}] gave a rollout of policy version "
                f"{rollout.policy_version}, the weights are at version {policy_version}"
            )
        return attrs.evolve(rollout, dynamics=dynamics)

    @torch.no_grad()
    def batch(
        self,
        draws: Sequence[Draw],
        policy_version: int,
        steps: int = 0,
        schedule: Schedule | None = None,
    ) -> Batch:
        """What is asked of the rollout of some samples; as in `sample`."""
        table = self.run.file.rollout
        prompts = tuple(draw.prompt for draw in draws)
        return Batch(
            prompts=prompts,
            conditioning=self.backbone.encode(prompts),
            seeds=tuple(draw.seed for draw in draws),
            group_ids=tuple(draw.group for draw in draws),
            height=table.height,
            width=table.width,
            steps=steps or table.steps,
            store=table.store,
            stochastic_steps=() if schedule is None else schedule.stochastic,
            trained_steps=() if schedule is None else schedule.trained,
            policy_version=policy_version,
            start_seeds=tuple(d.start_seed for d in draws if d.start_seed is not None),
        )

    def score(
        self, images: Tensor, batch: Batch, rewards: Mapping[str, Named], sizes: Sizes | None = None
    ) -> dict[str, Tensor]:
        """Call each reward by its key, in order; every score is (B,). A backward fills `sizes`."""
        out = {}
        for key, named in rewards.items():
            given = images if named.plugin.differentiable else images.detach()
            if sizes is not None and given.requires_grad and len(rewards) > 1:
                given = watched(given, key, sizes)
            version = faults.version_of(given)
            found = self.callers[key](images=given, batch=batch)
            scores: Any = found[0] if found else None  # pluggy leaves out one that gave None
            faults.check_scores(scores, named, given, version)
            out[key] = scores
        return out

    @torch.no_grad()
    def judge(self, rollout: Rollout, rewards: Mapping[str, Named]) -> dict[str, Tensor]:
        """Scores of the real samples, without gradient."""
        return self.score(
            self.backbone.decode(rollout.state(rollout.steps)), rollout.batch, rewards
        )

    @torch.no_grad()
    def with_references(self, rollout: Rollout, copy: Mapping[str, Tensor]) -> Rollout:
        """The rollout with the reference velocities of its trained steps; known ones are kept.

        copy: the weights before training, where the backbone has no adapter to switch off.
        """
        missing = [i for i in rollout.batch.trained_steps if i not in rollout.references]
        plugin = self.run.backbone.plugin
        within = swapped(plugin.trainable(), copy) if copy else plugin.reference()
        with within:
            found = evaluate(self.backbone, missing, rollout, (), "stream")
        velocities = {step: at_least_float32(v) for step, (_, v) in found.items()}
        return attrs.evolve(rollout, references={**rollout.references, **velocities})

    def reinforce(
        self, rollout: Rollout, generator: torch.Generator, credit: Credit
    ) -> Diagnostics:
        """Accumulate one micro-batch's share of a per-step gradient."""
        run = self.run
        with torch.no_grad():
            surrogate: Surrogate = self.manager.hook.build_surrogate(
                backbone=self.backbone, rollout=rollout, generator=generator
            )
        return run_groups(
            self.manager.hook,
            self.backbone,
            surrogate,
            "per-step",
            credit,
            None,
            run.file.engine.mode,
        )

    def backward(self, rollout: Rollout, generator: torch.Generator, samples: int) -> Outcome:
        """Accumulate one micro-batch's share of an endpoint gradient.

        samples: planned samples of the optimizer step, before any repeats of the estimator.
        """
        run = self.run
        with torch.no_grad():
            surrogate: Surrogate = self.manager.hook.build_surrogate(
                backbone=self.backbone, rollout=rollout, generator=generator
            )
        assert surrogate.endpoint is not None
        endpoint = surrogate.endpoint.detach().requires_grad_()
        surrogate = attrs.evolve(surrogate, endpoint=endpoint)
        batch = surrogate.rollout.batch
        sizes: Sizes = {}
        values = self.score(self.backbone.decode(endpoint), batch, run.rewards, sizes)
        count = samples * (len(batch) // len(rollout.batch))
        credit, dropped = self._credit(values, surrogate, count)
        diagnostics = run_groups(
            self.manager.hook,
            self.backbone,
            surrogate,
            run.algorithm.plugin.upstream,
            credit,
            credit.endpoint_gradient,
            run.file.engine.mode,
        )
        values = {key: value.detach() for key, value in values.items()}
        same = run.estimator.plugin.endpoint == "sample"
        real = values if same else self.judge(rollout, run.rewards)
        return Outcome(real, {} if same else values, credit, diagnostics, dropped, sizes)

    def scores(self, values: Mapping[str, Tensor], count: int) -> Scores:
        """The scores with what the run file and the rewards say of them."""
        return Scores(
            values=values,
            weights={key: table.core["weight"] for key, table in self.run.file.rewards.items()},
            margins={key: named.plugin.margin for key, named in self.run.rewards.items()},
            count=count,
        )

    def _credit(
        self, values: dict[str, Tensor], surrogate: Surrogate, count: int
    ) -> tuple[Credit, int]:
        """Ask the algorithm; samples with a reward that is not finite stop the run or are zero."""
        run = self.run
        finite = torch.stack([torch.isfinite(v.detach()) for v in values.values()]).all(dim=0)
        dropped = int((~finite).sum())
        if run.file.guard.nonfinite_reward == "fail" and processes.anywhere(dropped):
            if not dropped:
                raise GuardError("another process met a reward that is not finite")
            raise GuardError(faults.nonfinite(values, surrogate.rollout.batch))
        if dropped:
            values = {k: torch.where(finite, v, torch.zeros_like(v)) for k, v in values.items()}
            weights = finite.to(surrogate.rollout.state(0).dtype)
            if surrogate.sample_weights is not None:
                weights = weights * surrogate.sample_weights
            surrogate = attrs.evolve(surrogate, sample_weights=weights)
        with faults.blamed(run.algorithm, "credit"):
            credit: Credit = run.algorithm.plugin.credit(self.scores(values, count), surrogate)
        faults.check_credit(credit, run.algorithm, surrogate.endpoint, len(finite))
        if dropped and credit.endpoint_gradient is not None:
            # 0 times a NaN derivative is NaN: the rows are set, not multiplied.
            gradient = credit.endpoint_gradient.clone()
            gradient[~finite] = 0
            credit = attrs.evolve(credit, endpoint_gradient=gradient)
        return credit, dropped


@attrs.frozen(eq=False)
class Outcome:
    """What one micro-batch gave beside its gradient."""

    rewards: Mapping[str, Tensor]
    """KEY: (B,) on the real samples."""
    endpoint_rewards: Mapping[str, Tensor]
    """KEY: (B',) on the endpoint, where that is another image."""
    credit: Credit
    diagnostics: Diagnostics
    dropped: int
    """Samples dropped for a reward that is not finite."""
    gradient_sizes: Mapping[str, Tensor] = attrs.field(factory=dict)
    """KEY: how much of the endpoint gradient comes through each of several rewards."""

    @property
    def surrogate_samples(self) -> int:
        """B', the samples of the surrogate."""
        gradient = self.credit.endpoint_gradient
        return len(next(iter(self.rewards.values()))) if gradient is None else len(gradient)

    @property
    def silent(self) -> bool:
        """Whether the scores ask for no change at all."""
        gradient, advantages = self.credit.endpoint_gradient, self.credit.advantages
        if gradient is not None:
            return not bool(gradient.any())
        if advantages is None:
            return True
        kept = self.credit.kept
        return not bool((advantages if kept is None else advantages[kept]).any())


def open_stage(run: Run, device: str) -> Stage:
    """Load the weights of every plugin and compose the hooks."""
    context = LoadContext(
        device=device,
        guidance=run.file.rollout.guidance,
        seed=run.file.seed,
        prompts=(*run.prompts, *run.evaluation_prompts),
    )
    for named in run.named:
        if hasattr(named.plugin, "load"):
            with faults.blamed(named, "load"):
                named.plugin.load(context)
    _spread(run, device)
    guidance, precision = context.guidance, run.file.engine.precision
    backbone = CountedBackbone(run.backbone.plugin, guidance, precision, run.backbone)
    manager = run.manager([RolloutLoop(), Engine(backbone, run.file.engine.mode)])
    faults.note_failures(manager, run)
    return Stage(run, manager, _callers(manager, {**run.rewards, **run.held_out}), backbone)


def _spread(run: Run, device: str) -> None:
    """Shard the network where the launcher asks for it; all processes must have the same one."""
    if processes.world() == 1:
        return
    plugin = run.backbone.plugin
    trained = plugin.trainable()
    sums = [float(parameter.detach().double().sum()) for parameter in trained.values()]
    processes.same(repr(sums), "their trained weights")
    if sharding.asked_for():
        sharding.shard(plugin.network, trained, device)


def _callers(manager: pluggy.PluginManager, rewards: Mapping[str, Named]) -> dict[str, Any]:
    """One `score` caller a reward: a plain hook call would lose their names."""
    plugins = manager.get_plugins()
    return {
        key: manager.subset_hook_caller("score", [p for p in plugins if p is not named.plugin])
        for key, named in rewards.items()
    }
