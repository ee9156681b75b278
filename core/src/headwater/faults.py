"""Faults of plugins: who raised, what a score may be, what to say of one that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy
import torch
from torch import Tensor

from headwater.composition import Named, Run
from headwater.errors import HeadwaterError
from headwater.types import Batch


class blamed:
    """Add to any exception which plugin raised it. The exception itself is unchanged."""

    def __init__(self, named: Named, call: str) -> None:
        self.note = f"raised in {call} of [{named.key}], {named.entry.title}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self.note not in getattr(error, "__notes__", []):
            error.add_note(self.note)


def note_failures(manager: pluggy.PluginManager, run: Run) -> None:
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


def check_scores(scores: Any, named: Named, size: int, *, needs_grad: bool) -> None:
    """Scores are a (B,) tensor, with a gradient where one was promised."""
    who = f"[{named.key}] ({named.entry.title})"
    if not isinstance(scores, Tensor) or scores.shape != (size,):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise HeadwaterError(f"{who}: expected scores of shape ({size},), got {got}")
    if needs_grad and not scores.requires_grad:
        raise HeadwaterError(
            f"{who} declares itself differentiable but its scores have no gradient"
        )


def nonfinite(values: Mapping[str, Tensor], batch: Batch) -> str:
    """What to say of scores that are not finite."""
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
