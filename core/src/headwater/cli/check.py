"""`headwater check`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
def command(files: tuple[Path, ...], overrides: tuple[str, ...]) -> None:
    """Check run files and report all of their errors; nothing is loaded or written."""
    from headwater.composition import compose
    from headwater.errors import InputError

    wrong: list[InputError] = []
    for file in files:
        try:
            run = compose(file, overrides)
        except InputError as error:
            wrong.append(error)
            continue
        click.echo(
            f"{file}: ok ({run.estimator.entry.name}, {run.algorithm.entry.name}, "
            f"{run.backbone.entry.name}, {', '.join(run.rewards)})"
        )
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise InputError("check", [line for e in wrong for line in str(e).splitlines()])
