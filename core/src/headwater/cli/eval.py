"""`headwater eval`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("eval")
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.option("--prompts", default="", help="Prompt list; default the run's evaluation prompts.")
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    metavar="[KEY=]NAME",
    help="A reward plugin, or the key of a reward of the run. Default all of the run's rewards.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML with [reward.KEY] tables.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="reward.KEY.OPTION=VALUE, ..."
)
@click.option("--weights", default="", metavar="ema|live", help="Default as [evaluation] weights.")
@click.option("--checkpoint", default="last", show_default=True, help="last, best, base or a step.")
@click.option("--count", type=int, help="Prompts, from the first on; default all.")
@click.option("--seeds", default=4, show_default=True, help="Samples a prompt.")
@click.option("--seed", default=0, show_default=True, help="Seed of all noise.")
@click.option("--steps", type=int, help="Rollout steps; default the run's evaluation's.")
@click.option("--grid", default=32, show_default=True, help="Prompts shown side by side.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; default RUN/eval-NNN.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    run_folder: Path,
    prompts: str,
    rewards: tuple[str, ...],
    config: Path | None,
    overrides: tuple[str, ...],
    weights: str,
    checkpoint: str,
    count: int | None,
    seeds: int,
    seed: int,
    steps: int | None,
    grid: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare a run's model with the one before training, on the same prompts and noise.

    Reports every reward's means, paired change and win rate, how different the samples of a prompt
    are, and the same by the prompts' tag. Pictures, scores and the report go into --out.
    """
    from rich.console import Console
    from rich.progress import Progress

    from headwater.comparison import compare
    from headwater.comparison_report import show
    from headwater.comparison_setup import Request
    from headwater.statistics import without_nan

    request = Request(
        run_folder=run_folder,
        prompts=prompts,
        rewards=rewards,
        config=config,
        overrides=overrides,
        weights=weights,
        checkpoint=checkpoint,
        count=count,
        seeds=seeds,
        seed=seed,
        steps=steps,
        grid=grid,
        out=out,
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("sampling and judging", total=None)
        report = compare(
            request,
            lambda done, whole: bar.update(task, completed=done, total=whole),
            lambda text: console.print(text, highlight=False, soft_wrap=True),
        )
    if as_json:
        click.echo(json.dumps(without_nan(report), indent=1))
    else:
        show(report, Console())
