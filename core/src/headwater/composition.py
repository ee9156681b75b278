"""From a run file to the plugins of a run, every mismatch found before any weight loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pluggy

from headwater import hacking, hookspecs, observerspecs
from headwater.capabilities import mismatches
from headwater.discovery import find, import_class
from headwater.errors import InputError, PluginError
from headwater.foreign import said
from headwater.installed import Entry
from headwater.markers import PROJECT
from headwater.prompts import read_prompts
from headwater.runfile import read
from headwater.settings import structure, unstructure
from headwater.tables import PluginTable, RunFile
from headwater.types import Prompt


@attrs.frozen(eq=False)
class Named:
    """One plugin of a run, and where it came from."""

    key: str
    """Its table in the run file, `reward.preference` for instance."""
    plugin: Any
    entry: Entry


@attrs.frozen(eq=False)
class Run:
    """A composed run: checked, and nothing loaded yet."""

    file: RunFile
    backbone: Named
    dynamics: Named
    algorithm: Named
    estimator: Named
    rewards: Mapping[str, Named]
    held_out: Mapping[str, Named]
    observers: Sequence[Named]
    prompts: tuple[Prompt, ...]
    evaluation_prompts: tuple[Prompt, ...]

    @property
    def named(self) -> list[Named]:
        """Every plugin but the observers."""
        single = [self.backbone, self.dynamics, self.algorithm, self.estimator]
        return [*single, *self.rewards.values(), *self.held_out.values()]

    def manager(self, core: Sequence[object]) -> pluggy.PluginManager:
        """A fresh manager of exactly the named plugins, and core's providers where none is.

        core: core's own providers, each of them left out of a hook that a named plugin offers.
        """
        manager = new_manager()
        for named in self.named:
            register(manager, named)
            hook = hookspecs.NEEDED.get(named.entry.kind)
            if hook is not None and named.key not in _providers(manager, hook):
                raise PluginError(f"[{named.key}]: {named.entry.title} brings no hook {hook!r}")
        for provider in core:
            register_core(manager, provider)
        check_providers(manager)
        return manager


def compose(path: str | Path, overrides: Sequence[str] = ()) -> Run:
    """Read a run file and make its plugins. InputError holds all problems at once."""
    from headwater.rehearsal import rehearsed

    path = Path(path)
    file = read(path, overrides)
    problems: list[str] = []
    made = {kind: make_plugin(kind, kind, getattr(file, kind), problems) for kind in _SINGLE}
    rewards = make_rewards("reward", file.rewards, problems)
    held_out = make_rewards("evaluation.reward", file.evaluation.rewards, problems)
    problems += [
        f"[evaluation.reward.{k}]: the key is a trained reward's" for k in rewards if k in held_out
    ]
    observers = [_make_observer(name, file, problems) for name in file.output.trackers]
    prompts = _prompts(file.prompts.file, "[prompts] file", path, problems)
    evaluation = _prompts(file.evaluation.prompts, "[evaluation] prompts", path, problems)
    _geometry(file, evaluation, problems)
    if not problems:
        problems += mismatches(file, made, rewards, held_out)
    if problems:
        raise InputError(str(path), problems)
    count = file.evaluation.count or len(evaluation)
    run = Run(
        file=file,
        rewards=rewards,
        held_out=held_out,
        observers=[named for named in observers if named is not None],
        prompts=prompts,
        evaluation_prompts=evaluation[:count],
        **{kind: named for kind, named in made.items() if named is not None},
    )
    _try_composition(run, path)
    problems = rehearsed(run)
    if problems:
        raise InputError(str(path), problems)
    return run


_SINGLE = ("backbone", "dynamics", "algorithm", "estimator")


def make_plugin(kind: str, key: str, table: PluginTable, problems: list[str]) -> Named | None:
    """Find, import and construct one plugin; problems are collected."""
    try:
        entry = find(kind, table.use)
        cls = import_class(entry)
    except PluginError as error:
        problems.append(f"[{key}] use: {error}")
        return None
    try:
        plugin, found = structure(cls, table.settings, f"[{key}]")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - its constructor and validators are its own code
        plugin, found = None, [f"[{key}]: {entry.title} cannot be made: {said(error)}"]
    problems += found
    return None if plugin is None else Named(key, plugin, entry)


def make_rewards(
    where: str, tables: Mapping[str, PluginTable], problems: list[str]
) -> dict[str, Named]:
    """The rewards of some tables by their keys; problems are collected."""
    made = {k: make_plugin("reward", f"{where}.{k}", t, problems) for k, t in tables.items()}
    return {key: named for key, named in made.items() if named is not None}


def _make_observer(name: str, file: RunFile, problems: list[str]) -> Named | None:
    """[output] trackers names it, [observer.NAME] sets it."""
    table, found = file.observers.get(name, PluginTable(name)), list[str]()
    named = make_plugin("observer", f"observer.{name}", table, found)
    named_at = (f"[observer.{name}] use", "[output] trackers")
    problems += [text.replace(*named_at, 1) if named is None else text for text in found]
    return named


def _prompts(name: str, key: str, path: Path, problems: list[str]) -> tuple[Prompt, ...]:
    try:
        return read_prompts(name, path.parent) if name else ()
    except ValueError as error:
        problems.append(f"{key}: {error}")
        return ()


def _geometry(file: RunFile, evaluation: Sequence[Prompt], problems: list[str]) -> None:
    """Numbers that must divide, and counts that must be there."""
    if not file.prompts.file:
        problems.append("[prompts] file: expected a prompt list, got an empty name")
    repeated = sorted({t for t in file.output.trackers if file.output.trackers.count(t) > 1})
    problems += [f"[output] trackers: {name!r} is listed twice" for name in repeated]
    per_step, draws = file.prompts.per_step, file.estimator.core["draws"]
    if per_step % draws:
        valid = [d for d in range(1, per_step + 1) if per_step % d == 0]
        problems.append(
            f"[estimator] draws: {draws} does not divide [prompts] per_step = {per_step}; "
            f"valid: {', '.join(map(str, valid))}"
        )
    if file.evaluation.count > len(evaluation) > 0:
        problems.append(
            f"[evaluation] count: expected at most the {len(evaluation)} prompts of its list, "
            f"got {file.evaluation.count}"
        )
    keys = [*file.rewards, *file.evaluation.rewards]
    if file.evaluation.keep_best and file.evaluation.keep_best not in keys:
        problems.append(
            f"[evaluation] keep_best: expected one of {', '.join(keys)}, "
            f"got {file.evaluation.keep_best!r}"
        )
    problems += hacking.problems(file.evaluation)


def _try_composition(run: Run, path: Path) -> None:
    """Compose once with core's providers, so that `check` finds a wrong plugin."""
    from headwater.engine import Engine
    from headwater.rollout import RolloutLoop

    try:
        run.manager([RolloutLoop(), Engine(run.backbone.plugin, run.file.engine.mode)])
        observer_manager(run.observers)
    except PluginError as error:
        raise InputError(str(path), [str(error)]) from error


def new_manager() -> pluggy.PluginManager:
    """A manager with the six specs."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def observer_manager(observers: Sequence[Named]) -> pluggy.PluginManager:
    """Observers live in a manager of their own: they cannot touch the mathematics."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(observerspecs)
    for named in observers:
        register(manager, named)
    manager.check_pending()
    return manager


def register(manager: pluggy.PluginManager, named: Named) -> None:
    """Register a plugin; a hook that does not fit the specs is its package's fault."""
    try:
        manager.register(named.plugin, name=named.key)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(
            f"[{named.key}]: {named.entry.title} does not fit the hooks of this version of "
            f"headwater: {' '.join(str(error).split())}. Its package needs "
            f"another version of headwater, or a fix."
        ) from error


def register_core(manager: pluggy.PluginManager, provider: object) -> None:
    """Register core's provider for the hooks that no named plugin brings."""
    hooks = [
        name
        for name in hookspecs.SINGLE_PROVIDER
        if hasattr(provider, name) and not _providers(manager, name)
    ]
    if hooks:
        manager.register(_Only(provider, tuple(hooks)))


class _Only:
    """Some hooks of a provider."""

    def __init__(self, provider: object, hooks: tuple[str, ...]) -> None:
        for name in hooks:
            setattr(self, name, getattr(provider, name))


def _providers(manager: pluggy.PluginManager, hook: str) -> list[str]:
    found = getattr(manager.hook, hook).get_hookimpls()
    return [impl.plugin_name for impl in found if not (impl.wrapper or impl.hookwrapper)]


def check_providers(manager: pluggy.PluginManager) -> None:
    """Exactly one provider of each hook but `score`."""
    for hook in hookspecs.SINGLE_PROVIDER:
        found = _providers(manager, hook)
        if len(found) > 1:
            listed = " and ".join(f"[{name}]" for name in found)
            raise PluginError(f"the hook '{hook}' has {len(found)} providers: {listed}; keep one")
        if not found:
            raise PluginError(f"no plugin of this run brings the hook '{hook}'")


def resolved(run: Run) -> dict[str, Any]:
    """The run file with every default written out, as a TOML table."""
    file = run.file
    table: dict[str, Any] = {"name": file.name, "seed": file.seed, "steps": file.steps}
    for kind in _SINGLE:
        table[kind] = _resolved_plugin(getattr(file, kind), getattr(run, kind))
    for name in ("prompts", "rollout", "engine", "optimizer", "guard", "output"):
        table[name] = unstructure(getattr(file, name))
    evaluation = {k: v for k, v in unstructure(file.evaluation).items() if k != "rewards"}
    table["prompts"]["file"] = _absolute(file.prompts.file, file.path)
    evaluation["prompts"] = _absolute(file.evaluation.prompts, file.path)
    table["reward"] = {k: _resolved_plugin(file.rewards[k], n) for k, n in run.rewards.items()}
    observers = {
        named.key.removeprefix("observer."): settings
        for named in run.observers
        if (settings := unstructure(named.plugin))
    }
    if observers:
        table["observer"] = observers
    if run.held_out:
        evaluation["reward"] = {
            k: _resolved_plugin(file.evaluation.rewards[k], n) for k, n in run.held_out.items()
        }
    return {**table, "evaluation": evaluation}


def _resolved_plugin(table: PluginTable, named: Named) -> dict[str, Any]:
    use = f"{named.entry.distribution}:{named.entry.name}" if ":" in table.use else table.use
    return {"use": use, **table.core, **unstructure(named.plugin)}


def _absolute(name: str, path: Path) -> str:
    file = path.parent / name
    return str(file.resolve()) if name and file.is_file() else name
