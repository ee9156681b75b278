"""One micro-batch: from prompts to gradients, in the order of the design.

Endpoint upstream: rollout, surrogate, decode and score its endpoint with gradient, one
`autograd.grad` back to the endpoint, its graph freed, then the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pluggy
import torch
from torch import Tensor

from headwater.composition import Named, Run
from headwater.counting import CountedBackbone
from headwater.engine import Engine, run_groups
from headwater.errors import GuardError, HeadwaterError
from headwater.geometry import Draw
from headwater.protocols import LoadContext
from headwater.rollout import RolloutLoop
from headwater.types import Batch, Credit, Diagnostics, Rollout, Scores, Surrogate


@attrs.frozen(eq=False)
class Stage:
    """The loaded plugins of a run and the calls between them."""

    run: Run
    manager: pluggy.PluginManager
    callers: Mapping[str, Any]
    """Reward key: its own `score` caller."""
    backbone: CountedBackbone

    @torch.no_grad()
    def sample(self, draws: Sequence[Draw], policy_version: int, steps: int = 0) -> Rollout:
        """Draw samples and cache their trajectories. steps: 0 for the run file's."""
        table = self.run.file.rollout
        prompts = tuple(draw.prompt for draw in draws)
        steps = steps or table.steps
        batch = Batch(
            prompts=prompts,
            conditioning=self.backbone.encode(prompts),
            seeds=tuple(draw.seed for draw in draws),
            group_ids=tuple(draw.group for draw in draws),
            height=table.height,
            width=table.width,
            steps=steps,
            store=table.store,
            policy_version=policy_version,
        )
        rollout: Rollout = self.manager.hook.sample_rollout(
            backbone=self.backbone, dynamics=self.run.dynamics.plugin, batch=batch
        )
        return rollout

    def score(
        self, images: Tensor, batch: Batch, rewards: Mapping[str, Named]
    ) -> dict[str, Tensor]:
        """Call each reward by its key, in the file's order; every score is (B,)."""
        out = {}
        for key, named in rewards.items():
            given = images if named.plugin.differentiable else images.detach()
            (scores,) = self.callers[key](images=given, batch=batch)
            _check_scores(scores, named, len(batch), needs_grad=given.requires_grad)
            out[key] = scores
        return out

    @torch.no_grad()
    def judge(self, rollout: Rollout, rewards: Mapping[str, Named]) -> dict[str, Tensor]:
        """Scores of the real samples, without gradient."""
        return self.score(
            self.backbone.decode(rollout.state(rollout.steps)), rollout.batch, rewards
        )

    def backward(self, rollout: Rollout, generator: torch.Generator, samples: int) -> Outcome:
        """Accumulate one micro-batch's share of the gradient.

        samples: planned samples of the optimizer step, before any repeats of the estimator.
        """
        run = self.run
        with torch.no_grad():
            surrogate: Surrogate = self.manager.hook.build_surrogate(
                backbone=self.backbone, rollout=rollout, generator=generator
            )
        endpoint = surrogate.endpoint
        if endpoint is None:
            raise HeadwaterError(f"estimator {run.estimator.entry.name!r} gave no endpoint")
        surrogate = attrs.evolve(surrogate, endpoint=endpoint.detach().requires_grad_())
        batch = surrogate.rollout.batch
        values = self.score(self.backbone.decode(surrogate.endpoint), batch, run.rewards)
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
        return Outcome(real, {} if same else values, credit, diagnostics, dropped)

    def _credit(
        self, values: dict[str, Tensor], surrogate: Surrogate, count: int
    ) -> tuple[Credit, int]:
        """Ask the algorithm; samples with a reward that is not finite stop the run or are zero."""
        run = self.run
        finite = torch.stack([torch.isfinite(v.detach()) for v in values.values()]).all(dim=0)
        dropped = int((~finite).sum())
        if dropped:
            if run.file.guard.nonfinite_reward == "fail":
                raise GuardError(_nonfinite(values, surrogate.rollout.batch))
            values = {k: torch.where(finite, v, torch.zeros_like(v)) for k, v in values.items()}
            weights = finite.to(surrogate.rollout.state(0).dtype)
            if surrogate.sample_weights is not None:
                weights = weights * surrogate.sample_weights
            surrogate = attrs.evolve(surrogate, sample_weights=weights)
        scores = Scores(
            values=values,
            weights={key: table.core["weight"] for key, table in run.file.rewards.items()},
            margins={key: named.plugin.margin for key, named in run.rewards.items()},
            count=count,
        )
        credit: Credit = run.algorithm.plugin.credit(scores, surrogate)
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

    @property
    def endpoint_samples(self) -> int:
        """B', the samples of the surrogate."""
        gradient = self.credit.endpoint_gradient
        return 0 if gradient is None else len(gradient)


def open_stage(run: Run, device: str) -> Stage:
    """Load the weights of every plugin and compose the hooks."""
    context = LoadContext(device=device, guidance=run.file.rollout.guidance, seed=run.file.seed)
    for named in run.named:
        if hasattr(named.plugin, "load"):
            with blamed(named, "load"):
                named.plugin.load(context)
    backbone = CountedBackbone(run.backbone.plugin, run.file.rollout.guidance)
    manager = run.manager([RolloutLoop(), Engine(backbone, run.file.engine.mode)])
    _note_failures(manager, run)
    return Stage(run, manager, _callers(manager, {**run.rewards, **run.held_out}), backbone)


def _callers(manager: pluggy.PluginManager, rewards: Mapping[str, Named]) -> dict[str, Any]:
    """One `score` caller a reward: a plain hook call would lose their names."""
    plugins = manager.get_plugins()
    return {
        key: manager.subset_hook_caller("score", [p for p in plugins if p is not named.plugin])
        for key, named in rewards.items()
    }


class blamed:
    """Add to any exception which plugin raised it. The exception itself is unchanged."""

    def __init__(self, named: Named, call: str) -> None:
        self.note = f"raised in {call} of [{named.key}], {named.entry.title}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self.note not in getattr(error, "__notes__", []):
            error.add_note(self.note)


def _note_failures(manager: pluggy.PluginManager, run: Run) -> None:
    """An exception that leaves a hook says which hook, table and distribution."""
    by_key = {named.key: named for named in run.named}

    def before(_: str, __: Any, ___: Any) -> None:
        return None

    def after(outcome: pluggy.Result[Any], hook: str, impls: Any, _: Any) -> None:
        error = outcome.exception
        owners = [by_key[i.plugin_name] for i in impls if i.plugin_name in by_key]
        if error is not None and len(owners) == 1:
            note = f"raised in hook {hook} of [{owners[0].key}], {owners[0].entry.title}"
            if note not in getattr(error, "__notes__", []):
                error.add_note(note)

    manager.add_hookcall_monitoring(before, after)


def _check_scores(scores: Any, named: Named, size: int, *, needs_grad: bool) -> None:
    who = f"[{named.key}] ({named.entry.title})"
    if not isinstance(scores, Tensor) or scores.shape != (size,):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise HeadwaterError(f"{who}: expected scores of shape ({size},), got {got}")
    if needs_grad and not scores.requires_grad:
        raise HeadwaterError(
            f"{who} declares itself differentiable but its scores have no gradient"
        )


def _nonfinite(values: Mapping[str, Tensor], batch: Batch) -> str:
    for key, value in values.items():
        value = value.detach()
        bad = (~torch.isfinite(value)).nonzero().flatten().tolist()
        if bad:
            return (
                f"reward {key!r} is {float(value[bad[0]])} for {len(bad)} of {len(value)} samples, "
                f"first for the prompt {batch.prompts[bad[0]].text!r}; "
                f'[guard] nonfinite_reward = "drop-group" would drop them'
            )
    raise AssertionError("no score is non-finite")
