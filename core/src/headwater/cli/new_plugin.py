"""`headwater new-plugin`."""

from __future__ import annotations

from pathlib import Path

import click

from headwater.installed import KINDS


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", required=True, help=f"One of {', '.join(KINDS)}.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder to write; it must not exist. [default: headwater-NAME]",
)
def command(name: str, kind: str, out: Path | None) -> None:
    """Write a package with a small working plugin, its tests and a run file.

    NAME is the word that a run file uses for it, `every-other` for instance.
    """
    from headwater.scaffolding import new_plugin

    folder = out or Path(f"headwater-{name}")
    for warning in new_plugin(name, kind, folder):
        click.echo(f"Warning: {warning}", err=True)
    click.echo(f"wrote {folder}")
    click.echo(f"  cd {folder}")
    click.echo("  pip install -e '.[test]'")
    click.echo(f"  headwater run examples/{name}.toml")
    click.echo("  python -m pytest")
