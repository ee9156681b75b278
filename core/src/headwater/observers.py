"""The observers of a run. One that fails is reported once, and never stops or changes the run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from headwater import processes
from headwater.composition import Named, Run, observer_manager
from headwater.errors import OutputError
from headwater.isolation import isolated
from headwater.run_folder import is_unwritable, unwritable
from headwater.types import Prompt


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
        self.waiting: dict[str, Any] = {}
        """States of those that are not told anything: the run may be resumed once more."""

    def restore(self, states: Mapping[str, Any]) -> None:
        """Before `start`, in a resumed run: what `state` gave."""
        for named, _ in self.hooks:
            known = states.get(named.entry.name)
            if known is not None and hasattr(named.plugin, "restore"):
                self.waiting[named.entry.name] = known
                self._call(named, "restore", partial(named.plugin.restore, copy.deepcopy(known)))

    def start(self) -> None:
        """The run begins, or goes on. One that cannot start is not told anything more."""
        for named, hook in list(self.hooks):
            if self._call(named, "start", partial(self._start, hook)):
                self.waiting.pop(named.entry.name, None)
            else:
                self.hooks.remove((named, hook))

    def _start(self, hook: Any) -> None:
        hook.start(run=told_run(self.run), folder=self.folder)

    def before_step(self, step: int) -> None:
        """An optimizer step begins."""
        self._tell_all("before_step", step=step)

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """An optimizer step is done."""
        self._tell_all("after_step", step=step, metrics=MappingProxyType(dict(metrics)))

    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        """An evaluation is done."""
        given = MappingProxyType(dict(metrics))
        self._tell_all("after_evaluation", step=step, metrics=given, picture=picture)

    def fail(self, step: int, error: BaseException) -> None:
        """The run fails with `error`."""
        self._tell_at_the_end("on_error", step=step, error=error)

    def finish(self, step: int, reason: str) -> None:
        """The run ended."""
        self._tell_at_the_end("finish", step=step, reason=reason)
        for title, count in self.failures.items():
            if count > 1:
                self.say(f"{title} failed {count} times; its records have gaps")

    def state(self) -> dict[str, Any]:
        """What each needs to go on, by its name in the run file."""
        out = dict(self.waiting)
        for named, _ in self.hooks:
            if hasattr(named.plugin, "state"):
                self._call(named, "state", partial(self._ask, named, out))
        return out

    def _ask(self, named: Named, out: dict[str, Any]) -> None:
        """One observer's state; what JSON does not take is its failure."""
        out[named.entry.name] = json.loads(json.dumps(named.plugin.state()))

    def _tell_all(self, what: str, **given: Any) -> None:
        for named, hook in self.hooks:
            self._tell(named, hook, what, **given)

    def _tell_at_the_end(self, what: str, **given: Any) -> None:
        for named, hook in self.hooks:
            try:
                self._tell(named, hook, what, **given)
            except OutputError as error:
                self.say(str(error))  # what ended the run is not to be hidden by it

    def _tell(self, named: Named, hook: Any, what: str, **given: Any) -> bool:
        """Call one hook of one observer, where it has it. Returns: whether it went well."""
        caller = getattr(hook, what)
        return not caller.get_hookimpls() or self._call(named, what, partial(caller, **given))

    def _call(self, named: Named, what: str, call: Callable[[], Any]) -> bool:
        """Whether it went well. A library that wants to exit does not end the run either."""
        try:
            with isolated():
                call()
        except (Exception, SystemExit) as error:
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


def told_run(run: Run) -> Run:
    """A copy of a run to be looked at: nothing of it is the run's own, and no plugin is loaded."""
    return attrs.evolve(
        run,
        file=copy.deepcopy(run.file),
        backbone=_unloaded(run.backbone),
        dynamics=_unloaded(run.dynamics),
        algorithm=_unloaded(run.algorithm),
        estimator=_unloaded(run.estimator),
        rewards={key: _unloaded(named) for key, named in run.rewards.items()},
        held_out={key: _unloaded(named) for key, named in run.held_out.items()},
        observers=tuple(map(_unloaded, run.observers)),
        prompts=_copied(run.prompts),
        evaluation_prompts=_copied(run.evaluation_prompts),
    )


def _unloaded(named: Named) -> Named:
    """The same plugin, made anew of its settings."""
    plugin = named.plugin
    fields = [field for field in attrs.fields(type(plugin)) if field.init]
    settings = {f.alias: copy.deepcopy(getattr(plugin, f.name)) for f in fields}
    return attrs.evolve(named, plugin=type(plugin)(**settings))


def _copied(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """Prompts are frozen; what came with them need not be."""
    return tuple(
        attrs.evolve(prompt, metadata=copy.deepcopy(prompt.metadata)) if prompt.metadata else prompt
        for prompt in prompts
    )
