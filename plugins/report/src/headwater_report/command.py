"""`headwater report`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("report")
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN [RUN…]", type=click.Path(path_type=Path)
)
@click.option(
    "--out",
    metavar="FILE.html",
    type=click.Path(path_type=Path),
    help="The page. Default: report.html in the run's folder; of several runs, here.",
)
@click.option(
    "--png",
    metavar="FILE.png",
    type=click.Path(path_type=Path),
    help="Write one picture of the curves and the table, for a slide.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report's numbers as JSON.")
def command(runs: tuple[Path, ...], out: Path | None, png: Path | None, *, as_json: bool) -> None:
    """Report on run folders: one HTML file that opens anywhere, without the network.

    A run may still be going on. With --png or --json alone no page is written. An older report
    is replaced, any other file only if it has the name that is asked for.
    """
    from headwater_report.report import Targets, check, make

    page = out
    if out is None and png is None and not as_json:
        page = (runs[0] if len(runs) == 1 else Path()) / "report.html"
    targets = Targets(page, png)
    check(runs, targets)
    found = make(runs, targets)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for run in found["runs"]:
        click.echo(f"{run['name']}: {run['said']}. {run['verdict']}")
        for text in filter(None, (run["detail"], *run["warnings"], *run["notes"])):
            click.echo(f"  {text}")
    for path in (page, png):
        if path is not None:
            click.echo(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
