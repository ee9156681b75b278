"""How a plugin is found by its name, and loaded.

Listing reads entry-point metadata only; nothing is imported until a run file names it, so a
stranger's broken package cannot hurt someone who does not use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Any

import attrs

from headwater import __version__
from headwater.errors import InputError, PluginError, did_you_mean
from headwater.foreign import TRACEBACK, ImportFault, imported, said
from headwater.installed import KINDS as KINDS
from headwater.installed import Entry as Entry
from headwater.installed import entries as entries
from headwater.installed import normal, packages
from headwater.markers import PROJECT


def find(kind: str, name: str) -> Entry:
    """The plugin that `name` or `distribution:name` means; PluginError if none or several."""
    distribution, _, short = name.rpartition(":")
    every = entries(kind)
    named = [e for e in every if e.name == short]
    same = [e for e in named if not distribution or normal(distribution) == normal(e.distribution)]
    if len(same) == 1:
        return same[0]
    if same:
        owners = " and ".join(f"{e.distribution} {e.version}" for e in same)
        raise PluginError(
            f"the {kind} {short!r} is offered by {owners}. "
            f'Choose one: use = "{same[0].distribution}:{short}".'
        )
    names = sorted({e.name for e in every})
    hint = "".join(f"; {e.distribution} offers {short!r}" for e in named)
    hint = hint or _of_another_kind(kind, short) or did_you_mean(short, names)
    raise PluginError(
        f"no {kind} named {name!r}{hint}{'' if hint.endswith('?') else '.'} "
        f"Installed: {', '.join(names) or 'none'}. See 'headwater plugins'.{_unreadable()}"
    )


def _of_another_kind(kind: str, name: str) -> str:
    """`; there is an estimator of that name`, or nothing."""
    others = [k for k in KINDS if k != kind and any(e.name == name for e in entries(k))]
    if not others:
        return ""
    listed = " and ".join(f"{'an' if k[0] in 'aeo' else 'a'} {k}" for k in others)
    return f"; there is {listed} of that name"


def _unreadable() -> str:
    """What cannot be listed, in case the wanted name is among it."""
    return "".join(
        f" What {package.name} {package.version} offers cannot be read: {package.fault}."
        for package in packages()
        if package.fault
    )


def import_class(entry: Entry) -> type:
    """Import a plugin's class, or say in one paragraph whose fault it is."""
    try:
        fault = version_fault(entry)
        cls = None if fault else imported(entry.target)
        fault = fault or class_fault(cls)
    except ImportFault as error:
        raise PluginError(_broken(entry, str(error))) from error
    if fault:
        raise PluginError(_broken(entry, fault))
    assert isinstance(cls, type)
    return cls


def version_fault(entry: Entry) -> str:
    """Why a package is not made for this version of headwater, or an empty text."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in entry.package.requires:
        if not normal(text).startswith("headwater"):
            continue
        try:
            asked = Requirement(text)
        except InvalidRequirement:
            return f"its metadata requires {text!r}, which is no requirement"
        here = asked.marker is None or asked.marker.evaluate({"extra": ""})
        fits = asked.specifier.contains(__version__, prereleases=True)
        if normal(asked.name) == "headwater" and here and not fits:
            return f"it needs headwater{asked.specifier}, installed is {__version__}"
    return ""


def class_fault(cls: Any) -> str:
    """Why a class cannot be a plugin, or an empty text."""
    if not isinstance(cls, type):
        return f"{' '.join(repr(cls).split())[:80]} is not a class"
    if not attrs.has(cls):
        return f"{cls.__name__} is not an attrs class"
    if cls.__eq__ is not object.__eq__:
        return f"{cls.__name__} compares by value; declare it with eq=False"
    try:
        attrs.resolve_types(cls, include_extras=True)
    except Exception as error:  # noqa: BLE001 - an annotation is any expression
        return f"the type of a field of {cls.__name__} cannot be resolved: {said(error)}"
    untyped = [f.name for f in attrs.fields(cls) if f.init and f.type is None]
    if untyped:
        return f"the field {untyped[0]!r} of {cls.__name__} has no type"
    return next(_hook_faults(cls), "")


def _hook_faults(cls: type) -> Iterator[str]:
    """Parameters of hooks that would never be given: pluggy passes plain ones, and by name."""
    for name in dir(cls):
        hook = inspect.getattr_static(cls, name)
        if not hasattr(hook, f"{PROJECT}_impl") or not callable(hook):
            continue
        for parameter in inspect.signature(hook).parameters.values():
            plain = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if not plain or parameter.default is not parameter.empty:
                yield (
                    f"the parameter '{parameter}' of the hook {name!r} of {cls.__name__}: hooks "
                    f"take plain parameters without defaults"
                )


def _broken(entry: Entry, cause: str) -> str:
    return (
        f"the {entry.kind} {entry.name!r} cannot be loaded. {entry.title}: "
        f"{cause}. The fault is in that package or its installation, not in the run file. "
        f"{TRACEBACK}=1 shows the traceback."
    )


def load(kind: str, name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """Make one plugin: `load("estimator", "leapalign", {"coupling": 0.3})`.

    Raises PluginError for a name and InputError for settings that will not do.
    """
    from headwater.settings import structure

    if kind not in KINDS:
        raise InputError("load", [f"no kind {kind!r}; kinds: {', '.join(KINDS)}"])
    cls = import_class(find(kind, name))
    try:
        plugin, problems = structure(cls, settings or {}, f"[{kind}]")
    except ValueError as error:
        plugin, problems = None, [f"[{kind}]: {error}"]
    if problems:
        raise InputError(name, problems)
    return plugin


def prompt_resource(name: str) -> str | None:
    """Text of a prompt list that a plugin ships, `tiny:train`; None if it is no such name.

    A plugin names the package that holds its lists in the entry-point group `headwater.prompts`.
    ValueError where the list, or the package, is not what it should be.
    """
    owner, colon, stem = name.partition(":")
    owners = [entry for entry in entries("prompts") if colon and entry.name == owner]
    if not owners:
        return None
    if len(owners) > 1:
        titles = " and ".join(f"{e.distribution} {e.version}" for e in owners)
        raise ValueError(f"prompt lists {owner!r} are offered by {titles}; uninstall one")
    lists = prompt_lists(owners[0])
    if stem not in lists:
        raise ValueError(
            f"no prompt list {name!r}; {owners[0].distribution} ships "
            f"{', '.join(f'{owner}:{known}' for known in lists) or 'none'}"
        )
    return lists[stem].read_text(encoding="utf-8")


def prompt_lists(entry: Entry) -> dict[str, Traversable]:
    """The prompt lists in a plugin's package by name; ValueError where it cannot be imported."""
    try:
        package = imported(entry.target)
        if not isinstance(package, ModuleType):
            raise TypeError(f"{type(package).__name__} is no package")
        folder = resources.files(package)
        files = sorted(folder.iterdir(), key=lambda file: file.name)
    except (ImportFault, TypeError, OSError) as error:
        cause = error if isinstance(error, ImportFault) else said(error)
        raise ValueError(
            f"the prompt lists {entry.name!r} of {entry.title} cannot be read: {cause}"
        ) from error
    ends = (".jsonl", ".txt")
    return {f.name.rpartition(".")[0]: f for f in files if f.name.endswith(ends)}
