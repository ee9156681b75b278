"""Problems that show only when the plugins of a run meet, before any weight loads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.foreign import TRACEBACK, said
from headwater.plan import Planner
from headwater.types import RecordError

if TYPE_CHECKING:
    from headwater.composition import Run


def rehearsed(run: Run) -> list[str]:
    """What plugins say against each other or this number of steps; then a first step is planned."""
    found: list[str] = []
    for named in (*run.named, *run.observers):
        if not hasattr(named.plugin, "problems"):
            continue
        try:
            found += [f"[{named.key}]: {problem}" for problem in named.plugin.problems(run)]
        except ValueError as error:
            found.append(f"[{named.key}]: {error}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin's own code, told as its own
            found.append(f"[{named.key}]: {named.entry.title} failed in problems: {said(error)}")
    return found or _first_step(run)


def _first_step(run: Run) -> list[str]:
    """Problems of planning the first optimizer step, which asks four plugins about the geometry."""
    try:
        Planner(run).step(0)
    except HeadwaterError as error:
        return [", ".join([str(error), *getattr(error, "__notes__", [])])]
    except Exception as error:
        notes = ", ".join(getattr(error, "__notes__", []))
        if isinstance(error, RecordError):
            return [f"[estimator]: {run.estimator.entry.title}: {error}"]
        if isinstance(error, ValueError):  # in the plugin's own words, or core's
            if str(error).startswith("["):
                return [str(error)]
            own = not notes or f"[{run.estimator.key}]" in notes
            return [f"[estimator]: {error}" if own else f"{error}, {notes}"]
        if os.environ.get(TRACEBACK) or not notes:
            raise
        return [f"the first optimizer step cannot be planned: {said(error)}, {notes}"]
    return []
