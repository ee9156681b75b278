"""The observers of a run. One that fails is reported once, and never stops the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headwater import processes
from headwater.composition import Named, Run, observer_manager
from headwater.errors import OutputError
from headwater.run_folder import is_unwritable, unwritable


class Observers:
    """Tells every observer by itself, so that one's failure is not another's.

    Only the first process has any. A full disk is not an observer's failure: OutputError ends the
    run, and resuming it loses no record.
    """

    def __init__(self, run: Run, folder: Path, say: Callable[[str], None]) -> None:
        self.run, self.folder, self.say = run, folder, say
        told = run.observers if processes.first() else ()
        self.hooks = [(named, observer_manager([named]).hook) for named in told]
        self.failures: dict[str, int] = {}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Before `start`, in a resumed run: what `state` gave."""
        for named, _ in self.hooks:
            known = states.get(named.entry.name)
            if known is not None and hasattr(named.plugin, "restore"):
                self._call(named, "restore", partial(named.plugin.restore, known))

    def start(self) -> None:
        """The run begins, or goes on. One that cannot start is not told anything more."""
        for named, hook in list(self.hooks):
            if not self._call(
                named, "start", partial(hook.start, run=self.run, folder=self.folder)
            ):
                self.hooks.remove((named, hook))

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """An optimizer step is done."""
        for named, hook in self.hooks:
            self._call(named, "after_step", partial(hook.after_step, step=step, metrics=metrics))

    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        """An evaluation is done."""
        for named, hook in self.hooks:
            call = partial(hook.after_evaluation, step=step, metrics=metrics, picture=picture)
            self._call(named, "after_evaluation", call)

    def finish(self, step: int, reason: str) -> None:
        """The run ended."""
        for named, hook in self.hooks:
            try:
                self._call(named, "finish", partial(hook.finish, step=step, reason=reason))
            except OutputError as error:
                self.say(str(error))  # what ended the run is not to be hidden by it
        for title, count in self.failures.items():
            if count > 1:
                self.say(f"{title} failed {count} times; its records have gaps")

    def state(self) -> dict[str, Any]:
        """What each needs to go on, by its name in the run file."""
        out: dict[str, Any] = {}
        for named, _ in self.hooks:
            if hasattr(named.plugin, "state"):
                self._call(named, "state", partial(self._ask, named, out))
        return out

    def _ask(self, named: Named, out: dict[str, Any]) -> None:
        """One observer's state; what JSON does not take is its failure."""
        out[named.entry.name] = json.loads(json.dumps(named.plugin.state()))

    def _call(self, named: Named, what: str, call: Callable[[], Any]) -> bool:
        """Whether it went well."""
        try:
            call()
        except Exception as error:
            if is_unwritable(error):
                assert isinstance(error, OSError)
                title = f"the records of tracker {named.entry.name!r}"
                raise unwritable(title, self.folder, error) from error
            title = f"tracker {named.entry.name!r} ({named.entry.title})"
            self.failures[title] = self.failures.get(title, 0) + 1
            if self.failures[title] == 1:
                self.say(
                    f"{title} failed in {what}: {type(error).__name__}: {error}; "
                    f"the run goes on, and further failures of it are only counted"
                )
            return False
        return True
