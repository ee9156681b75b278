"""`headwater plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show a run's resolved file, geometry and network work, without weights."""
    import tomli_w

    from headwater.composition import compose, resolved
    from headwater.plan import plan

    run = compose(file, overrides)
    found = plan(run)
    table = resolved(run)
    if as_json:
        click.echo(json.dumps({**found, "resolved": table}, indent=1))
        return
    click.echo(tomli_w.dumps(table))
    _print(found)


def _print(found: dict[str, Any]) -> None:
    per_step, total, evaluation = found["per_step"], found["total"], found["evaluation"]
    click.echo(
        f"{found['optimizer_steps']} optimizer steps, each {found['prompts_per_step']} prompts x "
        f"{found['group']} = {found['samples_per_step']} samples in "
        f"{found['micro_batches_per_step']} micro-batches, {found['rollout_steps']} rollout steps"
    )
    click.echo("network evaluations per optimizer step, summed over samples:")
    for key, spread in per_step.items():
        low, high = spread["min"], spread["max"]
        several = f"  ({low} to {high})" if low != high else ""
        click.echo(f"  {key.replace('_', ' '):20s} {spread['mean']:10.1f}{several}")
    click.echo(f"total: {total['forwards']} forwards, {total['backwards']} backwards")
    click.echo(
        f"evaluation: {evaluation['evaluations']} times {evaluation['prompts']} prompts, "
        f"{evaluation['forwards']} forwards"
    )
