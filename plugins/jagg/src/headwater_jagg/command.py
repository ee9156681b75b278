"""`headwater probe`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import click


@click.command("probe")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--rollouts", default=3, type=click.IntRange(1), help="Rollouts to measure on.")
@click.option(
    "--threshold",
    default=0.9,
    type=click.FloatRange(-1, 1),
    help="Least cosine of a routed group.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture (PNG, SVG, PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    file: Path,
    overrides: tuple[str, ...],
    rollouts: int,
    threshold: float,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Compare JAGG's gradient with the exact one, group by group, before training.

    The run file's estimator must be jagg. Every group is measured as if it were routed.
    """
    from headwater_jagg.probe import picture, probe, table

    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"expected a .png, .svg or .pdf file, got {plot}")
    if plot is not None and find_spec("matplotlib") is None:
        raise click.UsageError(
            "--plot needs matplotlib, which is not installed: pip install 'headwater-jagg[plots]'"
        )
    if threshold != threshold:
        raise click.BadParameter("expected a cosine, got nan", param_hint="--threshold")
    found = probe(file, overrides, rollouts, threshold)
    if plot is not None:
        picture(found, plot)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        click.echo(table(found))
