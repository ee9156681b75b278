"""`headwater export`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--checkpoint", default="last", show_default=True, help="last, best or a step.")
def command(run_folder: Path, destination: Path, checkpoint: str) -> None:
    """Write a run's trained weights for use elsewhere.

    A LoRA becomes a file that the family's diffusers pipeline loads, full training a diffusers
    folder. What was written is read back and compared before the command says so.
    """
    from headwater.sampling import export

    click.echo(f"saved and read back: {export(run_folder, destination, checkpoint)}")
