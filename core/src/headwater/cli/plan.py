"""`headwater plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import click


@click.command("plan")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--modes", "every_mode", is_flag=True, help="Memory of every engine mode.")
@click.option(
    "--time", "timed", is_flag=True, help="Load the run, do a few steps and estimate its seconds."
)
@click.option(
    "--memory",
    "gigabytes",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    help="GB (1e9 bytes) of the device that must hold it; default this machine's.",
)
def command(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    every_mode: bool,
    timed: bool,
    gigabytes: float | None,
) -> None:
    """Show a run's resolved file, geometry, network work and memory, without weights.

    Several run files are shown side by side. With --time the weights are loaded and a few optimizer
    steps done; no run folder is written.
    """
    import tomli_w

    from headwater.composition import compose, resolved
    from headwater.engine import MODES
    from headwater.memory import device_memory
    from headwater.plan import plan

    if gigabytes is not None and math.isnan(gigabytes):
        raise click.BadParameter("expected a number of GB, got nan", param_hint="--memory")
    device = int(gigabytes * 1e9) if gigabytes else device_memory()
    plans = []
    for run in [compose(file, overrides) for file in files]:
        found = plan(run, MODES if every_mode else (run.file.engine.mode,))
        if found["memory"]:
            found["memory"] |= {"device": device, "fits": fits(found["memory"], device)}
        plans.append({**found, "seconds": None, "resolved": resolved(run)})
    if timed:
        for found, file in zip(plans, files, strict=True):
            found["seconds"] = _seconds(file, overrides, found)
    if as_json:
        click.echo(json.dumps(plans[0] if len(plans) == 1 else plans, indent=1))
    elif len(plans) > 1:
        _print_beside(plans)
    else:
        click.echo(tomli_w.dumps(plans[0]["resolved"]))
        _print(plans[0])
        _print_memory(plans[0]["memory"], plans[0]["resolved"])
        _print_seconds(plans[0]["seconds"])


def _seconds(file: Path, overrides: tuple[str, ...], found: dict[str, Any]) -> dict[str, Any]:
    """Estimated seconds of a run file, by part. Errors are noted with its name."""
    from headwater.composition import compose
    from headwater.timing import estimate, measure

    click.echo(f"timing {found['name']}: a warm step and at least two more", err=True)
    run = compose(file, overrides)  # planning has used the plugins of the other one
    try:
        return estimate(found, run.file, measure(run))
    except Exception as error:
        error.add_note(f"while timing {file}")
        raise


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
    flops = f", {total['flops'] / 1e15:.4g} PFLOP" if "flops" in total else ""
    click.echo(f"total: {total['forwards']} forwards, {total['backwards']} backwards{flops}")
    click.echo(
        f"evaluation: {evaluation['evaluations']} times {evaluation['prompts']} prompts, "
        f"{evaluation['forwards']} forwards"
    )


def _print_beside(plans: list[dict[str, Any]]) -> None:
    """One column a run file."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", *[found["name"] for found in plans])

    def row(title: str, value: Callable[[dict[str, Any]], object]) -> None:
        table.add_row(title, *[str(value(found)) for found in plans])

    row("estimator", lambda found: found["resolved"]["estimator"]["use"])
    row("engine mode", lambda found: found["resolved"]["engine"]["mode"])
    for key in ("optimizer_steps", "samples_per_step", "micro_batches_per_step", "rollout_steps"):
        row(key.replace("_", " "), itemgetter(key))
    for key in plans[0]["per_step"]:
        means = [f"{found['per_step'][key]['mean']:.1f}" for found in plans]
        table.add_row(f"{key.replace('_', ' ')} a step", *means)
    row("PFLOP in all", lambda found: f"{found['total'].get('flops', 0) / 1e15:.4g}")
    row("always held, GB", lambda found: _gigabytes(found, "resident"))
    row("peak, GB", lambda found: _gigabytes(found, "peak"))
    row("fits", lambda found: found["memory"]["fits"] if found["memory"] else "-")
    for part in PARTS if plans[0]["seconds"] else ():
        row(f"{part}, estimated", lambda found, part=part: duration(found["seconds"][part]))  # type: ignore[misc]
    Console().print(table)


def _gigabytes(found: dict[str, Any], key: str) -> str:
    memory = found["memory"]
    if memory is None:
        return "-"
    value = memory["peak"][memory["mode"]] if key == "peak" else memory[key]
    return f"{value / 1e9:.3f}"


PARTS = ("loading", "rollout", "rewards", "engine", "optimizer", "evaluation", "total")


def duration(seconds: float) -> str:
    """`12.3 s`, `4 min 5 s`, `7 h 8 min`, `3 d 4 h`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {small}"
    return f"{whole // 60} min {whole % 60} s"


def _print_seconds(seconds: dict[str, Any] | None) -> None:
    if seconds is None:
        return
    measured = seconds["measured"]
    click.echo(
        f"estimated time on {seconds['device']}, from {measured['steps']} optimizer steps of "
        f"{duration(measured['seconds_per_step'])} and {measured['evaluation_samples']} evaluation "
        f"samples; checkpoints and pictures are not in it:"
    )
    for part in PARTS:
        click.echo(f"  {part:36s} {duration(seconds[part]):>14s}")


def _print_memory(memory: dict[str, Any] | None, resolved: dict[str, Any]) -> None:
    """Bytes by kind in GB, and what to do where they are too many."""
    if memory is None:
        name = resolved["backbone"]["use"]
        click.echo(f"memory: backbone {name!r} does not say (it has no loads_on_meta)")
        return
    counts = memory["parameters"]
    click.echo(
        f"network: {counts['trainable']:,} trainable and {counts['frozen']:,} frozen parameters"
    )
    click.echo("memory of one process, GB (1e9 bytes):")
    rows = {f"weights, {key}": value for key, value in memory["weights"].items()}
    named = {"average": "average, twice while evaluated"}
    for key in ("gradients", "optimizer", "average", "reference", "rollout", "conditioning"):
        rows[named.get(key, key)] = memory[key]
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
            f"it smaller: {', '.join(_smaller(resolved))}"
        )


def _smaller(resolved: dict[str, Any]) -> list[str]:
    """Settings that this run does not have yet; the last always holds."""
    backbone = resolved["backbone"]
    choices = {
        '[backbone] train = "lora"': backbone.get("train") == "full",
        "checkpointing = true": backbone.get("checkpointing") is False,
        "[prompts] micro_batch = 1": resolved["prompts"]["micro_batch"] > 1,
        '[engine] mode = "stream"': resolved["engine"]["mode"] != "stream",
        "[optimizer] ema = 0": resolved["optimizer"]["ema"] != 0,
        '[optimizer] states = "8bit"': resolved["optimizer"]["states"] == "full",
    }
    return [*(text for text, open_ in choices.items() if open_), "FSDP2 over several GPUs"]
