"""`headwater compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("compare")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--estimators",
    metavar="LIST|FILE.toml",
    help="NAME or NAME{KEY=VALUE,...}, with commas between; or a file of tables "
    "[estimator.LABEL]. Default: the run file's own.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option(
    "--rollouts",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    help="Rollouts to measure on.",
)
@click.option(
    "--draws",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Gradients a rollout of an estimator that draws indices.",
)
@click.option("--seed", type=click.IntRange(0), help="In the place of the run file's.")
@click.option(
    "--by-step/--no-by-step",
    default=True,
    help="Compare the part of every active step too, at twice the cost.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture (PNG, SVG, PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    file: Path,
    estimators: str | None,
    overrides: tuple[str, ...],
    rollouts: int,
    draws: int,
    seed: int | None,
    plot: Path | None,
    *,
    by_step: bool,
    as_json: bool,
) -> None:
    """Compare estimators' gradients with the exact one on the same rollouts, before training.

    The reference is full backpropagation (bptt) for the gradient of a reward, and exact for a
    policy gradient. Loss, rewards and weights are those of the run file.
    """
    from headwater_lab import plots
    from headwater_lab.compare import Options, compare
    from headwater_lab.report import progress_line, table

    if plot is not None:
        plots.check(plot)
    options = Options(rollouts, draws, seed, by_step)

    def told(progress: object) -> None:
        line = progress_line(progress)
        if line:
            click.echo(line, err=True)

    found = compare(file, estimators, overrides, options, told).summary
    click.echo(json.dumps(found, indent=1) if as_json else table(found))
    if plot is not None:
        plots.picture(found, plot)
