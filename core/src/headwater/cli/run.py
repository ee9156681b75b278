"""`headwater run`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Run folder; default runs/NAME-NNN.")
@click.option("--resume", is_flag=True, help="Go on from the newest whole checkpoint in --out.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    file: Path, out: Path | None, resume: bool, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Train a run file.

    With --resume the run in --out goes on as if it had never stopped. Its run file may differ in
    name, steps (not under a cosine schedule), [evaluation], [output] and [guard]; anything else
    is refused. Damaged checkpoints are named and skipped.

    Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 3 stopped by a guard,
    130 interrupted after a checkpoint.
    """
    from rich.console import Console

    from headwater import processes
    from headwater.composition import compose
    from headwater.errors import GuardError
    from headwater.hacking import STOPPED
    from headwater.loop import train
    from headwater.progress import Display

    composed = compose(file, overrides)
    summary = train(composed, out, Display(Console(stderr=as_json)), resume=resume)
    speaks = processes.first()
    processes.leave()
    if not speaks:
        pass
    elif as_json:
        click.echo((Path(summary.folder) / "summary.json").read_text())
    else:
        report(summary)
    if summary.stopped == STOPPED:
        click.echo(
            f"stopped by {STOPPED} after step {summary.steps}, checkpoint written: "
            f"{summary.warnings[-1]}",
            err=as_json,
        )
        sys.exit(GuardError.exit_code)
    if summary.stopped:
        click.echo(
            f"stopped by {summary.stopped} after step {summary.steps}, checkpoint written; "
            f"--out {summary.folder} --resume goes on",
            err=as_json,
        )
        sys.exit(130)


def report(summary: object) -> None:
    """Before and after, one row a reward."""
    from rich.console import Console
    from rich.table import Table

    from headwater.summary import Summary

    assert isinstance(summary, Summary)
    table = Table("", "before", "after", "change (paired)", "in SE")
    for key, row in {**summary.rewards, **summary.held_out}.items():
        before, after, change = (row[part] for part in ("before", "after", "difference"))
        se = change["se_independent"]
        table.add_row(
            key + (" (held out)" if key in summary.held_out else ""),
            f"{before['mean']:.4f} ± {before['se']:.4f}",
            f"{after['mean']:.4f} ± {after['se']:.4f}",
            f"{change['mean']:+.4f} ± {change['se']:.4f}",
            f"{change['mean'] / se:+.1f}" if se else "-",
        )
    console = Console()
    if table.row_count:
        first = next(iter({**summary.rewards, **summary.held_out}.values()))
        console.print(table)
        console.print(
            f"{first['before']['n']} held-out prompts, same noise before and after; in SE: "
            "the change over the standard error of two independent means"
        )
    if summary.stopped:
        at = summary.evaluated_at
        said = f"'after' was measured at step {at}" if at else "nothing was evaluated since step 0"
        console.print(said, highlight=False)
    console.print(
        f"{summary.steps} steps in {summary.seconds:.0f} s, results in {summary.folder}",
        highlight=False,
    )
