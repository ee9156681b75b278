"""The command line. Commands import their modules when they are called.

A package may add commands: an entry point of the group `headwater.command` names a click command.
Those of core cannot be replaced.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module, metadata
from typing import Any, TextIO

import click

from headwater import __version__
from headwater.discovery import Entry, entries
from headwater.errors import HeadwaterError, PluginError

# Threads that wait by spinning stall each other where other work shares the cores. It is read when
# torch loads, so it stands before any command.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# torch's profiler, which measures peak memory, tells of buffers that are older than it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

_COMMANDS = {
    "run": "Train a run file.",
    "check": "Check a run file and report all of its errors.",
    "plan": "Show what a run will do, without weights.",
    "plugins": "List the installed plugins.",
    "show": "Show a plugin's options, defaults and paper.",
    "cite": "Print BibTeX for what a run file uses.",
    "sample": "Draw images from a trained run.",
    "eval": "Compare a trained run with the model before training.",
    "export": "Write a run's trained weights for use elsewhere.",
}


class _Lazy(click.Group):
    """Commands live in `headwater.cli.NAME`, or in a plugin, and are imported when named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, from the table above and from installed metadata."""
        return [*_COMMANDS, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name in _added():
            return _imported(_added()[cmd_name])
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"headwater.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            added = {name: f"From {entry.distribution}." for name, entry in _added().items()}
            formatter.write_dl(list({**_COMMANDS, **added}.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Errors that explain themselves are shown without a traceback, warnings without source."""
        warnings.showwarning = _said
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
            click.echo(f"Error: {error}", err=True)
            for note in getattr(error, "__notes__", []):
                click.echo(f"  {note}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)


def _said(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in one line; those of libraries keep their kind."""
    kind = "" if category is UserWarning else f"{category.__name__}: "
    click.echo(f"Warning: {kind}{message}", err=True)


def _added() -> dict[str, Entry]:
    """Commands of installed packages; the first of a name by distribution."""
    found: dict[str, Entry] = {}
    for entry in entries("command"):
        if entry.name not in _COMMANDS:
            found.setdefault(entry.name, entry)
    return found


def _imported(entry: Entry) -> click.Command:
    """A package's command; PluginError where it cannot be imported."""
    try:
        command = metadata.EntryPoint(entry.name, entry.target, "").load()
    except Exception as error:
        raise PluginError(
            f"the command {entry.name!r} of {entry.title} cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(command, click.Command):
        raise PluginError(f"the command {entry.name!r} of {entry.title} is no click command")
    return command


@click.group(cls=_Lazy)
@click.version_option(__version__, prog_name="headwater")
def main() -> None:
    """Align text-to-image flow-matching models with rewards."""
