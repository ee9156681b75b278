"""From a run folder and what is asked of its evaluation to a run that only samples and judges.

Of the run file the backbone, the rollout and the engine's precision are used; its trained rewards
are neither made nor loaded unless they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from headwater import checkpoints
from headwater.capabilities import mismatches
from headwater.composition import Named, Run, make_plugin, make_rewards
from headwater.errors import InputError
from headwater.prompts import read_prompts
from headwater.runfile import read, read_rewards, reward_tables
from headwater.sampling import checkpoint_folder
from headwater.settings import unstructure
from headwater.tables import PluginTable, RunFile
from headwater.types import Prompt

SETTABLE = (
    "reward.KEY",
    "backbone",
    "rollout",
    "engine.precision",
    "evaluation.batch",
    "guard.nonfinite_reward",
)
"""What `--set` may change: the keys and tables that an evaluation reads."""


@attrs.frozen(eq=False)
class Request:
    """What is asked for; None and empty texts stand for the run's own, or all."""

    run_folder: Path
    prompts: str = ""
    """Prompt list, relative to the working directory, or one that a plugin ships."""
    rewards: Sequence[str] = ()
    """KEY=NAME, NAME of a plugin, or the key of one of the run's own rewards."""
    config: Path | None = None
    """File whose rewards are added, trained and held-out ones; its other tables are not read."""
    overrides: Sequence[str] = ()
    """KEY=VALUE of `SETTABLE`."""
    weights: str = ""
    checkpoint: str = "last"
    count: int | None = None
    """Prompts, from the first on."""
    seeds: int = 4
    """Samples a prompt."""
    seed: int = 0
    steps: int | None = None
    """Rollout steps."""
    grid: int = 32
    """Prompts that are shown side by side."""
    out: Path | None = None


@attrs.frozen(eq=False)
class Setup:
    """What will be done; nothing is loaded yet."""

    run: Run
    """Its rewards are the held-out ones, its prompts the evaluation's."""
    checkpoint: Path | None
    """None for the base model itself."""
    weights: str
    trained: frozenset[str]
    """Keys of the rewards that the run trained on."""
    prompts: str
    """Name of the prompt list."""


def prepare(request: Request) -> Setup:
    """Read and check everything. InputError holds all problems of the options at once."""
    path = request.run_folder / "run.toml"
    if not path.exists():
        raise InputError(str(request.run_folder), ["it holds no run (no run.toml)"])
    problems = _numbers(request)
    own = [o for o in request.overrides if not o.startswith("reward.")]
    problems += [p for o in own if (p := _unread(o))]
    if problems:
        raise InputError("eval", problems)
    file = read(path, own)
    steps = request.steps or file.evaluation.steps
    tables = _tables(request, file, problems)
    name, prompts = _prompts(request, file, problems)
    chosen = make_rewards("reward", tables, problems)
    if problems:
        raise InputError("eval", problems)
    table = attrs.evolve(file.evaluation, rewards=tables, steps=steps)
    run = _run(attrs.evolve(file, evaluation=table), chosen, prompts)
    folder = checkpoint_folder(request.run_folder, request.checkpoint)
    weights = _weights(request.weights, file.evaluation.weights, folder)
    return Setup(run, folder, weights, _trained(file, chosen), name)


def _numbers(request: Request) -> list[str]:
    given = (("count", 1), ("seeds", 1), ("seed", 0), ("steps", 1), ("grid", 0))
    found = [
        f"--{name}: expected a whole number of at least {low}, got {value}"
        for name, low in given
        if (value := getattr(request, name)) is not None and value < low
    ]
    if request.weights not in ("", "ema", "live"):
        found.append(f"--weights: expected ema or live, got {request.weights!r}")
    return found


def _unread(override: str) -> str:
    """A problem where nothing would read the key."""
    key = override.partition("=")[0].strip()
    if key in ("rollout.steps", "evaluation.steps"):
        return f"--set {override}: use --steps"
    known = [name for name in SETTABLE if key == name or key.startswith(f"{name}.")]
    return "" if known else f"--set {override}: eval reads only {', '.join(SETTABLE)}"


def _tables(request: Request, file: RunFile, problems: list[str]) -> dict[str, PluginTable]:
    """The rewards asked for; all of the run's own where none is."""
    own = {key: _plain(t) for key, t in {**file.rewards, **file.evaluation.rewards}.items()}
    raw: dict[str, Any] = {}
    if request.config is not None:
        found = read_rewards(request.config)
        raw = {name.rpartition(".")[2]: _plain(table) for name, table in found.items()}
    for text in request.rewards:
        key, table = _asked(text, own)
        if not key or not table["use"]:
            problems.append(f"--reward {text}: expected NAME or KEY=NAME")
        elif key in raw:
            problems.append(f"--reward {text}: there is a reward {key!r} already; use KEY=NAME")
        else:
            raw[key] = table
    if not raw and not request.rewards:
        raw = own
    overrides = [o for o in request.overrides if o.startswith("reward.")]
    return reward_tables(raw, overrides, problems) if raw else {}


def _asked(text: str, own: Mapping[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Key and table of one `--reward`."""
    key, equals, name = (part.strip() for part in text.partition("="))
    if equals:
        return key, {"use": name}
    if key in own:
        return key, own[key]
    return re.sub(r"[^\w-]", "-", key.rpartition(":")[2]), {"use": key}


def _plain(table: PluginTable) -> dict[str, Any]:
    """As in a file, without what core reads: an evaluation sums nothing."""
    return {"use": table.use, **table.settings}


def _prompts(
    request: Request, file: RunFile, problems: list[str]
) -> tuple[str, tuple[Prompt, ...]]:
    """Name and prompts of the list."""
    name = request.prompts or file.evaluation.prompts
    folder = Path() if request.prompts else request.run_folder
    if not name:
        problems.append("--prompts: the run has no evaluation prompts of its own; name a list")
        return name, ()
    try:
        found = read_prompts(name, folder)
    except ValueError as error:
        problems.append(f"--prompts: {error}")
        return name, ()
    count = request.count or len(found)
    if count > len(found):
        problems.append(
            f"--count: expected at most the {len(found)} prompts of {name}, got {count}"
        )
    if count == 1 and request.seeds == 1:
        problems.append(
            "one sample has no standard error; give more prompts, or --seeds of 2 or more"
        )
    return name, found[:count]


def _run(file: RunFile, chosen: Mapping[str, Named], prompts: tuple[Prompt, ...]) -> Run:
    """A run whose plugins fit each other. InputError otherwise."""
    problems: list[str] = []
    kinds = ("backbone", "dynamics", "algorithm", "estimator")
    made = {kind: make_plugin(kind, kind, getattr(file, kind), problems) for kind in kinds}
    problems = problems or mismatches(file, made, {}, chosen)
    if problems:
        raise InputError(str(file.path), problems)
    named = {kind: found for kind, found in made.items() if found is not None}
    run = Run(
        file=file,
        rewards={},
        held_out=chosen,
        observers=(),
        prompts=(),
        evaluation_prompts=prompts,
        **named,
    )
    problems = [
        f"[{each.key}]: {problem}"
        for each in (run.backbone, *chosen.values())
        if hasattr(each.plugin, "problems")
        for problem in each.plugin.problems(run)
    ]
    if problems:
        raise InputError("eval", problems)
    return run


def _weights(asked: str, usual: str, folder: Path | None) -> str:
    """`ema` or `live`, as the checkpoint has them; `base` without one."""
    if folder is None:
        return "base"
    averaged = (folder / checkpoints.AVERAGE).exists()
    if asked == "ema" and not averaged:
        problem = "the run kept no moving average ([optimizer] ema = 0); use --weights live"
        raise InputError(str(folder), [problem])
    return "ema" if (asked or usual) == "ema" and averaged else "live"


def _trained(file: RunFile, chosen: Mapping[str, Named]) -> frozenset[str]:
    """Keys whose plugin and settings are those of a trained reward."""
    known = [(t.use.rpartition(":")[2], dict(t.settings)) for t in file.rewards.values()]
    return frozenset(
        key
        for key, named in chosen.items()
        if (named.entry.name, unstructure(named.plugin)) in known
    )
