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
@click.option("--modes", "every_mode", is_flag=True, help="Memory of every engine mode.")
@click.option(
    "--memory",
    "gigabytes",
    type=click.FloatRange(min=0, min_open=True),
    help="GB (1e9 bytes) of the device that must hold it; default this machine's.",
)
def command(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    every_mode: bool,
    gigabytes: float | None,
) -> None:
    """Show a run's resolved file, geometry, network work and memory, without weights."""
    import tomli_w

    from headwater.composition import compose, resolved
    from headwater.engine import MODES
    from headwater.memory import device_memory
    from headwater.plan import plan

    run = compose(file, overrides)
    found = plan(run, MODES if every_mode else (run.file.engine.mode,))
    device = int(gigabytes * 1e9) if gigabytes else device_memory()
    if found["memory"]:
        found["memory"] |= {"device": device, "fits": fits(found["memory"], device)}
    table = resolved(run)
    if as_json:
        click.echo(json.dumps({**found, "resolved": table}, indent=1))
        return
    click.echo(tomli_w.dumps(table))
    _print(found)
    _print_memory(found["memory"], run.backbone.entry.name)


def fits(memory: dict[str, Any], device: int) -> bool:
    """Whether the run's own mode fits."""
    return int(memory["peak"][memory["mode"]]) <= device


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


def _print_memory(memory: dict[str, Any] | None, backbone: str) -> None:
    """Bytes by kind in GB, and what to do where they are too many."""
    if memory is None:
        click.echo(f"memory: backbone {backbone!r} does not say (it has no loads_on_meta)")
        return
    counts = memory["parameters"]
    click.echo(
        f"network: {counts['trainable']:,} trainable and {counts['frozen']:,} frozen parameters"
    )
    click.echo("memory of one process, GB (1e9 bytes):")
    rows = {f"weights, {key}": value for key, value in memory["weights"].items()}
    for key in ("gradients", "optimizer", "average", "reference", "rollout", "conditioning"):
        rows[key] = memory[key]
    rows |= {"sampling (activations)": memory["sampling"]}
    rows |= {"decoder and rewards (activations)": memory["decoding"]}
    rows |= {f"engine, {mode} (activations)": size for mode, size in memory["engine"].items()}
    rows |= {"bfloat16 weights of autocast": memory["autocast"]}
    rows |= {f"peak, {mode}": size for mode, size in memory["peak"].items()}
    for key, size in rows.items():
        if size:
            click.echo(f"  {key:36s} {size / 1e9:10.3f}")
    if memory["uncounted"]:
        click.echo(f"not counted: the weights and graph of {', '.join(memory['uncounted'])}")
    if not memory["fits"]:
        click.echo(
            f"WARNING: this will not fit a device of {memory['device'] / 1e9:.1f} GB. What makes "
            'it smaller: train = "lora", checkpointing = true, a smaller micro_batch, '
            'mode = "stream", optimizer.ema = 0'
        )
