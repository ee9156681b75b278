"""What `headwater plugins --check` looks at: all that can be told of a plugin without a run."""

from __future__ import annotations

from typing import Any

import pluggy

from headwater import hookspecs, observerspecs
from headwater.capabilities import misdeclared, undeclared
from headwater.cli import command_of
from headwater.discovery import import_class, prompt_lists
from headwater.errors import PluginError
from headwater.installed import Entry
from headwater.markers import PROJECT


def fault_of(entry: Entry) -> str:
    """Why a plugin, a command or a list of prompts cannot be used; empty where it can."""
    try:
        if entry.kind == "command":
            command_of([entry])
            return ""
        if entry.kind == "prompts":
            prompt_lists(entry)
            return ""
        cls = import_class(entry)
    except (PluginError, ValueError) as error:
        return str(error)
    fields = set(getattr(cls, "__annotations__", {}))
    missing = [name for name in undeclared(entry.kind, cls) if name not in fields]
    if missing:
        return f"does not declare {', '.join(missing)}"
    return "; ".join(misdeclared(entry.kind, cls)) or _hook_fault(entry.kind, cls)


def _hook_fault(kind: str, cls: Any) -> str:
    """A hook that does not fit its spec, or one that the kind needs."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(observerspecs if kind == "observer" else hookspecs)
    try:
        manager.register(cls)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        return " ".join(str(error).split())
    needed = hookspecs.NEEDED.get(kind)
    lacks = needed is not None and not getattr(manager.hook, needed).get_hookimpls()
    return f"brings no hook {needed!r}" if lacks else ""
