"""Reward hacking, seen in a run's evaluations: the trained rewards rise, a held-out one falls.

The rule. A streak is a run of evaluations each of which has a higher trained total and a lower
held-out mean than the one before it. It is told of, once, when it is `patience` evaluations long
and the held-out reward fell over it by more than the standard error of that fall. The fall is
paired: prompt by prompt, from the evaluation before the streak to its newest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from headwater.statistics import Estimate, estimate, paired
from headwater.tables import Evaluation

STOPPED = "reward hacking"
"""Why the run ended early, in its summary."""


@attrs.frozen
class Streak:
    """Where a run stands after an evaluation."""

    total: float
    """Mean of the trained total at the newest evaluation."""
    held_out: float
    """Mean of the held-out reward at the newest evaluation."""
    start: tuple[float, ...]
    """The held-out reward of every prompt at the evaluation before the streak."""
    start_total: float
    """The trained total there."""
    length: int = 0
    """Evaluations of the streak; 0 outside of one."""
    told: bool = False
    """Whether somebody was told of it."""


def follow(
    before: Streak | None, total: float, scores: Sequence[float], patience: int
) -> tuple[Streak, Estimate | None]:
    """The streak after another evaluation; and its paired fall, where it is to be told of now.

    total: mean of the trained total. scores: the held-out reward, one a prompt, always the same
    prompts. A value that is not finite ends a streak.
    """
    mean = estimate(scores).mean
    if before is None or not (total > before.total and mean < before.held_out):
        return Streak(total, mean, tuple(scores), total), None
    length = before.length + 1
    fall = paired(scores, before.start)
    found = length >= patience and fall.mean > fall.se and not before.told
    after = attrs.evolve(
        before, total=total, held_out=mean, length=length, told=before.told or found
    )
    return after, fall if found else None


@attrs.define(eq=False)
class Watch:
    """Follows a run by the reward `key`; a `patience` of 0 looks at nothing."""

    key: str
    patience: int
    stop: bool
    """Whether the run is to end where a streak is told of."""
    streak: Streak | None = None
    warnings: list[str] = attrs.field(factory=list)
    stopped: bool = False

    @classmethod
    def of(cls, table: Evaluation) -> Watch:
        """As [evaluation] asks."""
        return cls(table.keep_best, table.patience, stop=table.on_hacking == "stop")

    def after(
        self, step: int, totals: Sequence[float], scores: Mapping[str, Sequence[float]]
    ) -> dict[str, float]:
        """Look at an evaluation; a warning is added to `warnings`. Returns: metrics."""
        if not self.patience:
            return {}
        total, before = estimate(totals).mean, self.streak
        self.streak, fall = follow(before, total, scores[self.key], self.patience)
        if fall is not None:
            self.warnings.append(self._text(step, self.streak, fall))
            self.stopped = self.stop
        return {
            "hacking/streak": float(self.streak.length),
            "hacking/warning": float(fall is not None),
        }

    def _text(self, step: int, streak: Streak, fall: Estimate) -> str:
        several = f"{streak.length} evaluations in a row" if streak.length > 1 else "one evaluation"
        return (
            f"step {step}: in {several} the trained rewards rose "
            f"(total {streak.start_total:.4g} to {streak.total:.4g}) while the held-out reward "
            f"{self.key!r} fell, {estimate(streak.start).mean:.4g} to {streak.held_out:.4g}, by "
            f"{fall.mean:.2g} ± {fall.se:.2g}: reward hacking"
        )

    def state(self) -> dict[str, Any]:
        """What later evaluations need of earlier ones, as JSON takes it."""
        streak = None if self.streak is None else attrs.asdict(self.streak)
        return {"streak": streak, "warnings": self.warnings}

    def restore(self, state: Mapping[str, Any] | None, *, comparable: bool) -> None:
        """Go on from a `state`; from its warnings alone where evaluations are other ones now."""
        self.warnings, self.stopped, self.streak = [], False, None
        if state is None:
            return  # a checkpoint from before there was a watch
        self.warnings = list(map(str, state["warnings"]))
        if comparable and state["streak"] is not None:
            found = dict(state["streak"])
            self.streak = Streak(**{**found, "start": tuple(map(float, found["start"]))})


def problems(table: Evaluation) -> list[str]:
    """What is wrong with the keys of [evaluation] that concern hacking."""
    if not table.patience:
        unused = table.on_hacking == "stop"
        return ['[evaluation] on_hacking: "stop" needs patience of at least 1'] if unused else []
    found = []
    if not table.prompts:
        found.append("[evaluation] patience: it needs evaluation prompts; there are none")
    if table.keep_best not in table.rewards:
        keys = ", ".join(table.rewards) or "none; add a table [evaluation.reward.KEY]"
        found.append(
            f"[evaluation] patience: it needs keep_best to be a held-out reward, so that the best "
            f"checkpoint is not the one that hacks most; got {table.keep_best!r}, held out: {keys}"
        )
    return found
