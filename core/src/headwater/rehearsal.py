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
        except Exception as error:  # noqa: BLE001 - the plugin's own code, told as its own
            found.append(f"[{named.key}]: {named.entry.title} failed in problems: {said(error)}")
    return found or _first_step(run)


def _first_step(run: Run) -> list[str]:
    """Problems of planning the first optimizer step, which asks four plugins about the geometry."""
    try:
        Planner(run).step(0)
    except RecordError as error:
        return [f"[estimator]: {run.estimator.entry.title}: {error}"]
    except ValueError as error:
        return [f"[estimator]: {error}"]
    except HeadwaterError as error:
        return [", ".join([str(error), *getattr(error, "__notes__", [])])]
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        if os.environ.get(TRACEBACK) or not notes:
            raise
        return [f"the first optimizer step cannot be planned: {said(error)}, {', '.join(notes)}"]
    return []
