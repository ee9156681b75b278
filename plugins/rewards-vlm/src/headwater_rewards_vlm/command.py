"""`headwater geneval-prompts`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("geneval-prompts")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def command(source: Path, target: Path) -> None:
    """Make a prompt list (jsonl) of GenEval's evaluation_metadata.jsonl."""
    from headwater.errors import InputError
    from headwater_rewards_vlm.geneval import prompt_list

    if target.exists():
        raise InputError(str(target), ["it is there already; nothing was written"])
    try:
        records = prompt_list(source)
        target.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    except (ValueError, OSError) as error:
        raise InputError("geneval-prompts", [str(error)]) from None
    click.echo(f"{len(records)} prompts in {target}")
