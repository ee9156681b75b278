"""Rewards of a run file on their own: for a server of rewards, or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from headwater.capabilities import undeclared
from headwater.composition import Named, make_rewards, new_manager, register
from headwater.errors import InputError, PluginError
from headwater.faults import check_scores, version_of
from headwater.runfile import read_rewards
from headwater.types import Batch

Scorer = Callable[[Tensor, Batch], Tensor]


def compose_rewards(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Named]:
    """The rewards of a run file by key, trained and held out; its other tables are not read.

    Nothing is loaded. InputError holds all problems at once.
    """
    path = Path(path)
    tables, problems = read_rewards(path, overrides), list[str]()
    found: dict[str, Named] = {}
    for name, table in tables.items():
        where, _, key = name.rpartition(".")
        found |= make_rewards(where, {key: table}, problems)
    for named in found.values():
        if names := undeclared("reward", named.plugin):
            problems.append(
                f"[{named.key}]: {named.entry.title} does not declare {', '.join(names)}"
            )
    if problems:
        raise InputError(str(path), problems)
    return found


def scorer(named: Named) -> Scorer:
    """The `score` hook of one reward, in a manager of its own; its scores are checked.

    PluginError where it brings none.
    """
    manager = new_manager()
    register(manager, named)
    if not manager.hook.score.get_hookimpls():
        raise PluginError(f"[{named.key}]: {named.entry.title} brings no hook 'score'")

    def score(images: Tensor, batch: Batch) -> Tensor:
        """(B,) for images (B, 3, H, W)."""
        version = version_of(images)
        found = manager.hook.score(images=images, batch=batch)
        scores: Any = found[0] if found else None  # pluggy leaves out a hook that gave None
        check_scores(scores, named, images.detach(), version)
        return scores

    return score
