"""`headwater sample`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("sample")
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.option("--prompt", "texts", multiple=True, help="A prompt; may be given several times.")
@click.option(
    "--count", default=16, show_default=True, help="Evaluation prompts, if none is given."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the noise.")
@click.option("--checkpoint", default="last", show_default=True, help="last, best, base or a step.")
@click.option("--out", type=click.Path(path_type=Path), help="PNG; default in the run's samples/.")
def command(
    run_folder: Path,
    texts: tuple[str, ...],
    count: int,
    seed: int,
    checkpoint: str,
    out: Path | None,
) -> None:
    """Draw images from a trained run and write them as one picture."""
    from headwater.sampling import sample

    def note(text: str) -> None:
        click.echo(text, err=True)

    click.echo(sample(run_folder, texts, count, seed, checkpoint, out, note))
