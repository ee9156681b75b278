"""Which plugins are installed, and how one is loaded.

Listing reads entry-point metadata only; nothing is imported until a run file names it, so a
stranger's broken package cannot hurt someone who does not use it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata, resources
from typing import Any

import attrs

from headwater.errors import InputError, PluginError, did_you_mean

KINDS = ("backbone", "dynamics", "reward", "algorithm", "estimator", "observer")
TRACEBACK = "HEADWATER_TRACEBACK"


@attrs.frozen(eq=False)
class Entry:
    """One plugin on offer, from metadata alone."""

    kind: str
    name: str
    target: str
    """Import path, `module:Class`."""
    distribution: str
    version: str

    @property
    def title(self) -> str:
        """For messages: distribution, version and import path."""
        return f"{self.distribution} {self.version} ({self.target})"


def entries(kind: str) -> list[Entry]:
    """Every installed plugin of a kind, sorted by name and distribution."""
    found = [_entry(kind, point) for point in metadata.entry_points(group=f"headwater.{kind}")]
    return sorted(found, key=lambda entry: (entry.name, entry.distribution))


def _entry(kind: str, point: metadata.EntryPoint) -> Entry:
    dist = point.dist
    name, version = (dist.name, dist.version) if dist is not None else ("unknown", "unknown")
    return Entry(kind, point.name, point.value, name, version)


def find(kind: str, name: str) -> Entry:
    """The plugin that `name` or `distribution:name` means; PluginError if none or several."""
    distribution, _, short = name.rpartition(":")
    every = entries(kind)
    same = [e for e in every if e.name == short and distribution in ("", e.distribution)]
    if len(same) == 1:
        return same[0]
    if same:
        owners = " and ".join(f"{e.distribution} {e.version}" for e in same)
        raise PluginError(
            f"the {kind} {short!r} is offered by {owners}. "
            f'Choose one: use = "{same[0].distribution}:{short}".'
        )
    names = [e.name for e in every]
    installed = ", ".join(names) or "none"
    raise PluginError(
        f"no {kind} named {name!r}{did_you_mean(short, names)}. "
        f"Installed: {installed}. See 'headwater plugins'."
    )


def import_class(entry: Entry, key: str) -> type:
    """Import a plugin's class, or say in one paragraph whose fault it is.

    key: where the run file names it, `[estimator] use` for instance.
    """
    try:
        cls = metadata.EntryPoint(entry.name, entry.target, "").load()
    except (Exception, SystemExit) as error:
        if os.environ.get(TRACEBACK):
            raise
        raise PluginError(_broken(entry, key, f"{type(error).__name__}: {error}")) from error
    fault = class_fault(cls)
    if fault:
        raise PluginError(_broken(entry, key, fault))
    return cls


def class_fault(cls: Any) -> str:
    """Why a class cannot be a plugin, or an empty text."""
    if not isinstance(cls, type):
        return f"{cls!r} is not a class"
    if not attrs.has(cls):
        return f"{cls.__name__} is not an attrs class"
    if cls.__eq__ is not object.__eq__:
        return f"{cls.__name__} compares by value; declare it with eq=False"
    try:
        attrs.resolve_types(cls, include_extras=True)
    except NameError as error:
        return f"the type of a field of {cls.__name__} cannot be resolved: {error}"
    return ""


def _broken(entry: Entry, key: str, cause: str) -> str:
    return (
        f"{key} names the {entry.kind} {entry.name!r}, which cannot be loaded. {entry.title} "
        f"failed with {cause}. The fault is in that package or its installation, not in the run "
        f"file. {TRACEBACK}=1 shows the traceback."
    )


def load(kind: str, name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """Make one plugin: `load("estimator", "leapalign", {"coupling": 0.3})`.

    Raises PluginError for a name and InputError for settings that will not do.
    """
    from headwater.settings import structure

    if kind not in KINDS:
        raise InputError("load", [f"no kind {kind!r}; kinds: {', '.join(KINDS)}"])
    cls = import_class(find(kind, name), f"load({kind!r}, {name!r})")
    plugin, problems = structure(cls, settings or {}, f"[{kind}]")
    if problems:
        raise InputError(name, problems)
    return plugin


def prompt_resource(name: str) -> str | None:
    """Text of a prompt list that a plugin ships, `tiny:train`; None if it is no such name.

    A plugin names the package that holds its lists in the entry-point group `headwater.prompts`.
    """
    owner, colon, stem = name.partition(":")
    if not colon:
        return None
    for point in metadata.entry_points(group="headwater.prompts"):
        if point.name == owner:
            folder = resources.files(point.value)
            for suffix in (".txt", ".jsonl"):
                file = folder / f"{stem}{suffix}"
                if file.is_file():
                    return file.read_text(encoding="utf-8")
    return None
