"""The command line. Commands import their modules when they are called.

A package may add commands: an entry point of the group `headwater.command` names a click command.
Those of core cannot be replaced.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Any, TextIO

import click

from headwater import __version__, installed
from headwater.errors import BLAME, HeadwaterError, PluginError

# Threads that wait by spinning stall each other where other work shares the cores. It is read when
# torch loads, so it stands before any command.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# torch's profiler, which measures peak memory, tells of buffers that are older than it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

COMMANDS = {
    "run": "Train a run file.",
    "check": "Check a run file and report all of its errors.",
    "plan": "Show what a run will do, without weights.",
    "plugins": "List the installed plugins.",
    "show": "Show a plugin's options, defaults and paper.",
    "cite": "Print BibTeX for what a run file uses.",
    "sample": "Draw images from a trained run.",
    "eval": "Compare a trained run with the model before training.",
    "export": "Write a run's trained weights for use elsewhere.",
    "new-plugin": "Write a package with a small working plugin.",
}


class _Lazy(click.Group):
    """Commands live in `headwater.cli.NAME`, or in a plugin, and are imported when named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, from the table above and from installed metadata."""
        return [*COMMANDS, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name in COMMANDS:
            home = f"headwater.cli.{cmd_name.replace('-', '_')}"
            command: click.Command = import_module(home).command
            return command
        owners = _added().get(cmd_name, [])
        return command_of(owners) if owners else None

    def get_help(self, ctx: click.Context) -> str:
        """Options and commands, none of them imported.

        Laid out here: click's own layout takes a third of the time that importing click takes.
        """
        options = {"  ".join(p.opts): p.help for p in self.params if isinstance(p, click.Option)}
        added = {
            name: f"From {' and '.join(entry.distribution for entry in owners)}."
            for name, owners in _added().items()
        }
        lines = [f"Usage: {ctx.command_path} [OPTIONS] COMMAND [ARGS]...", "", f"  {self.help}"]
        for title, rows in (("Options", options), ("Commands", {**COMMANDS, **added})):
            width = max(map(len, rows))
            lines += ["", f"{title}:", *(f"  {name:{width}}  {rows[name]}" for name in rows)]
        return "\n".join(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Errors that explain themselves are shown without a traceback, warnings without source."""
        warnings.showwarning = _said
        _spare_torch()
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
        except Exception as error:
            if os.environ.get("HEADWATER_TRACEBACK") or not _blamed(error):
                raise
            click.echo(f"Error: {_explained(error)}", err=True)
            sys.exit(1)


def _spare_torch() -> None:
    """torch reads every package's entry points when it loads, and fails at one that it cannot."""
    broken = [package for package in installed.packages() if package.fault]
    if broken and "TORCH_DEVICE_BACKEND_AUTOLOAD" not in os.environ:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        warnings.warn(
            f"what {broken[0].name} {broken[0].version} offers cannot be read: "
            f"{broken[0].fault}; torch looks for no further device backends",
            stacklevel=2,
        )


def _blamed(error: Exception) -> bool:
    """Whether the exception left a plugin, which is named in its notes."""
    return any(note.startswith(BLAME) for note in getattr(error, "__notes__", []))


def _explained(error: Exception) -> str:
    """An exception of a plugin's own code: what, whose, and where."""
    from traceback import extract_tb

    from headwater.foreign import TRACEBACK, said

    place = extract_tb(error.__traceback__)[-1]
    lines = [said(error), *getattr(error, "__notes__", [])]
    lines.append(f"at {place.filename}, line {place.lineno}, in {place.name}")
    lines.append(f"{TRACEBACK}=1 shows the traceback")
    return "\n  ".join(lines)


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


def _added() -> dict[str, list[installed.Entry]]:
    """Commands of installed packages, and who offers each."""
    found: dict[str, list[installed.Entry]] = {}
    for entry in installed.entries("command"):
        if entry.name not in COMMANDS:
            found.setdefault(entry.name, []).append(entry)
    return found


def command_of(owners: list[installed.Entry]) -> click.Command:
    """A package's command; PluginError where it cannot be imported, or several packages have it."""
    from headwater.foreign import TRACEBACK, ImportFault, imported

    entry = owners[0]
    if len(owners) > 1:
        titles = " and ".join(f"{owner.distribution} {owner.version}" for owner in owners)
        raise PluginError(f"the command {entry.name!r} is offered by {titles}; uninstall one")
    try:
        command = imported(entry.target)
        fault = "" if isinstance(command, click.Command) else "it is no click command"
    except ImportFault as error:
        fault = str(error)
    if fault:
        raise PluginError(
            f"the command {entry.name!r} of {entry.title} cannot be loaded: {fault}. The fault is "
            f"in that package or its installation. {TRACEBACK}=1 shows the traceback."
        )
    assert isinstance(command, click.Command)
    return command


def _print_and_exit(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        text = ctx.get_help() if option.name == "help" else f"headwater, version {__version__}"
        click.echo(text, color=ctx.color)
        ctx.exit()


# click's own two options would import locale for their texts.
_FLAG: dict[str, Any] = {
    "is_flag": True,
    "expose_value": False,
    "is_eager": True,
    "callback": _print_and_exit,
}


@click.group(cls=_Lazy, add_help_option=False)
@click.option("--version", help="Show the version and exit.", **_FLAG)
@click.option("--help", help="Show this message and exit.", **_FLAG)
def main() -> None:
    """Align text-to-image flow-matching models with rewards."""
