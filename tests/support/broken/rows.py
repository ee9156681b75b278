"""Packages with one fault each: what their module holds, and what is to be said of it.

The class of every module is `Mine`, its entry point has the row's name. When its fault shows:

found: by `check` and at the start of `run`, exit code 2.
load: when weights load, exit code 1, and no run folder is left.
run: in the run, exit code 1.
guard: in the run, by a guard, exit code 3.
harmless: never; the run ends as one without it does.
"""

import textwrap
from typing import NamedTuple

HEAD = """
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()
"""

PLUGIN = """
import attrs, torch
from headwater import hookimpl
from headwater.protocols import Transition
from headwater.testing.objectives import EachStep, LastStep, ToyDirect, ToyPolicy
from headwater.testing.plugins import Brightness, Recorder, ToyBackbone, ToyNoise
from headwater.types import Credit, Group, Rollout, Surrogate
frozen, define = attrs.frozen(eq=False), attrs.define(eq=False)
"""


class Row(NamedTuple):
    """One package."""

    name: str
    kind: str
    shows: str
    source: str
    cause: str
    """What must be said of it."""


def rows(
    kind: str, shows: str, sources: dict[str, tuple[str, str]], head: str = PLUGIN
) -> list[Row]:
    """Rows of one kind; sources: {name: (source, cause)}."""
    return [
        Row(name, kind, shows, HEAD + head + textwrap.dedent(source), cause)
        for name, (source, cause) in sources.items()
    ]


def method(parent, text, hook="@hookimpl"):
    """A class with one method of its own."""
    return f"@define\nclass Mine({parent}):\n    {hook}\n    def {text}\n"
