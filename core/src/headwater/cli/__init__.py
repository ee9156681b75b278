"""The command line. Commands import their modules when they are called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from headwater import __version__
from headwater.errors import HeadwaterError

_COMMANDS = {
    "run": "Train a run file.",
    "check": "Check a run file and report all of its errors.",
    "plan": "Show what a run will do, without weights.",
    "plugins": "List the installed plugins.",
    "show": "Show a plugin's options, defaults and paper.",
    "sample": "Draw images from a trained run.",
}


class _Lazy(click.Group):
    """Commands live in `headwater.cli.NAME` and are imported when named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, from the table above."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"headwater.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Errors that explain themselves are shown without a traceback."""
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
            click.echo(f"Error: {error}", err=True)
            for note in getattr(error, "__notes__", []):
                click.echo(f"  {note}", err=True)
            sys.exit(error.exit_code)


@click.group(cls=_Lazy)
@click.version_option(__version__, prog_name="headwater")
def main() -> None:
    """Align text-to-image flow-matching models with rewards."""
