"""A rollout for a per-step upstream: drawn and scored once, then used for several updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from headwater import processes
from headwater.errors import GuardError
from headwater.faults import blamed, check_credit, nonfinite
from headwater.geometry import Draw, Schedule, micro_batches, positions_of
from headwater.stage import Stage
from headwater.types import Credit, Rollout


@attrs.define(eq=False)
class Collected:
    """One micro-batch of a rollout that waits for its updates."""

    part: int
    """Of the index draws, over all shares; see `geometry.Draw`."""
    rollout: Rollout
    """Its reference velocities are added when first asked for."""
    rewards: Mapping[str, Tensor]
    """KEY: (B,)"""
    credit: Credit
    dropped: int
    """Samples of groups with a reward that is not finite."""


def collect(
    stage: Stage, draws: Sequence[Draw], policy_version: int, schedule: Schedule, samples: int
) -> list[Collected]:
    """Roll out and score this process's micro-batches, then ask for the credit of all samples.

    draws: of all processes. samples: planned samples of one optimizer step, of all processes.
    """
    size = stage.run.file.prompts.micro_batch
    positions = positions_of(draws, processes.rank(), processes.world())
    batches = micro_batches([draws[i] for i in positions], size)
    rollouts = [stage.sample(batch, policy_version, schedule=schedule) for batch in batches]
    each = [stage.judge(rollout, stage.run.rewards) for rollout in rollouts]
    own = {key: torch.cat([scores[key] for scores in each]) for key in each[0]}
    values = {k: processes.whole_rows(v, positions, len(draws)) for k, v in own.items()}
    credit, dropped = _credit(stage, draws, values, rollouts, samples)
    credit, dropped = credit.index(positions), dropped[positions]
    out, start = [], 0
    for batch, rollout, rewards in zip(batches, rollouts, each, strict=True):
        rows = range(start, start + len(batch))
        bad = int(dropped[list(rows)].sum())
        waiting = kept(rollout, stage.run.file.rollout.keep)
        out.append(Collected(batch[0].part, waiting, rewards, credit.index(rows), bad))
        start += len(batch)
    return out


def kept(rollout: Rollout, where: str) -> Rollout:
    """Where the run file has rollouts wait."""
    return rollout.to("cpu") if where == "cpu" else rollout


def skipped_groups(share: Sequence[Collected]) -> int:
    """Groups of which no sample is trained on; a group may be cut by micro-batches."""
    every: set[int] = set()
    used: set[int] = set()
    for item in share:
        ids, kept = item.rollout.batch.group_ids, item.credit.kept
        every.update(ids)
        used.update(g for i, g in enumerate(ids) if kept is None or bool(kept[i]))
    used = set().union(*processes.gathered(used))
    return len(set().union(*processes.gathered(every)) - used)


def _credit(
    stage: Stage,
    draws: Sequence[Draw],
    values: Mapping[str, Tensor],
    rollouts: Sequence[Rollout],
    samples: int,
) -> tuple[Credit, Tensor]:
    """The algorithm's credit, and (B,) which samples were dropped with their group."""
    groups = [draw.group for draw in draws]
    finite = torch.stack([torch.isfinite(v) for v in values.values()]).all(dim=0)
    if not bool(finite.all()) and stage.run.file.guard.nonfinite_reward == "fail":
        batch = attrs.evolve(rollouts[0].batch, prompts=tuple(draw.prompt for draw in draws))
        raise GuardError(nonfinite(values, batch))
    bad = {group for group, fine in zip(groups, finite.tolist(), strict=True) if not fine}
    dropped = torch.tensor([group in bad for group in groups], device=finite.device)
    rows = (~dropped).nonzero().flatten().tolist()
    whole = Credit(
        advantages=torch.zeros(len(draws), device=finite.device),
        kept=torch.zeros(len(draws), dtype=torch.bool, device=finite.device),
    )
    if not rows:
        return whole, dropped
    scores = stage.scores({key: v[rows] for key, v in values.items()}, samples)
    with blamed(stage.run.algorithm, "credit"):
        part: Credit = stage.run.algorithm.plugin.credit(scores, [groups[i] for i in rows])
    check_credit(part, stage.run.algorithm, None, len(rows))
    if not bad:
        return part, dropped
    assert part.advantages is not None and whole.advantages is not None and whole.kept is not None
    whole.advantages[rows] = part.advantages.to(whole.advantages.dtype)
    whole.kept[rows] = True if part.kept is None else part.kept
    return attrs.evolve(part, advantages=whole.advantages, kept=whole.kept), dropped
