"""Run files: TOML in, checked tables out, and the resolved file back to TOML.

Core's own tables are the attrs classes below; a plugin's table is checked against the plugin's
class. All problems of a file are reported at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import tomli

from headwater.errors import InputError, did_you_mean
from headwater.settings import checked_values
from headwater.tables import (
    AlgorithmKeys,
    EngineTable,
    EstimatorKeys,
    Evaluation,
    GuardTable,
    NoKeys,
    Optimizer,
    OutputTable,
    PluginTable,
    Prompts,
    RewardKeys,
    RolloutTable,
    RunFile,
    Top,
)

_PLUGINS: dict[str, type] = {
    "backbone": NoKeys,
    "dynamics": NoKeys,
    "algorithm": AlgorithmKeys,
    "estimator": EstimatorKeys,
}
_TABLES: dict[str, type] = {
    "prompts": Prompts,
    "rollout": RolloutTable,
    "engine": EngineTable,
    "optimizer": Optimizer,
    "guard": GuardTable,
    "output": OutputTable,
}


def read(path: Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read, override and check a run file. InputError holds every problem of core's tables."""
    table = _parse(path)
    problems = [p for o in overrides if (p := _override(table, o))]
    values = _tables(table, problems)
    if problems:
        raise InputError(str(path), problems)
    values["name"] = values["name"] or path.stem
    return RunFile(path=path, **values)


def read_rewards(path: Path, overrides: Sequence[str] = ()) -> dict[str, PluginTable]:
    """Only the rewards of a run file, trained and held out; no other table is read or needed.

    Returns: their tables by name, `reward.KEY` and `evaluation.reward.KEY`.
    """
    table = _parse(path)
    problems = [p for o in overrides if (p := _override(table, o))]
    evaluation = table.get("evaluation", {})
    held_out = evaluation.get("reward") if isinstance(evaluation, dict) else None
    needed = "reward" in table or held_out is None
    raw = table.get("reward")
    trained = _rewards(raw, "reward", problems, required=True) if needed else {}
    judges = _rewards(held_out, "evaluation.reward", problems, required=False)
    problems += [
        f"[evaluation.reward.{k}]: the key is a trained reward's" for k in trained if k in judges
    ]
    if problems:
        raise InputError(str(path), problems)
    named = {f"reward.{key}": found for key, found in trained.items()}
    return {**named, **{f"evaluation.reward.{key}": found for key, found in judges.items()}}


def reward_tables(
    raw: Mapping[str, Any], overrides: Sequence[str], problems: list[str]
) -> dict[str, PluginTable]:
    """Tables [reward.KEY] of rewards that are only measured, overridden by `reward.KEY...=VALUE`.

    A weight is refused, since nothing would read it. Problems are collected.
    """
    table = {"reward": dict(raw)}
    found = [p for o in overrides if (p := _override(table, o))]
    problems += found
    return {} if found else _rewards(table["reward"], "reward", problems, required=False)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(str(path), [f"no such file{hint}"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), [f"cannot be read: {error}"]) from None
    except tomli.TOMLDecodeError as error:
        raise InputError(str(path), [f"not valid TOML: {error}"]) from None
    except RecursionError:
        raise InputError(str(path), ["not valid TOML: nested too deeply"]) from None


def _override(table: dict[str, Any], text: str) -> str:
    """Apply one `a.b=VALUE`; returns a problem or an empty text."""
    key, equals, raw = text.partition("=")
    *parents, last = [part.strip() for part in key.split(".")]
    if not equals or not last or not all(parents):
        return f"--set {text}: expected KEY=VALUE, the key with dots"
    try:
        found = tomli.loads(f"value = {raw}")
    except (tomli.TOMLDecodeError, RecursionError):
        found = {"value": raw.strip()}  # a bare word is text, as in --set estimator.use=bptt
    if len(found) != 1:
        return f"--set {text!r}: expected one KEY=VALUE"
    value = found["value"]
    inner: Any = table
    for parent in parents:
        inner = inner.setdefault(parent, {})
        if not isinstance(inner, dict):
            return f"--set {text}: {parent!r} is not a table"
    inner[last] = value
    return ""


def _tables(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    top = {f.name for f in attrs.fields(Top)}
    known = {*top, *_PLUGINS, *_TABLES, "reward", "evaluation", "observer"}
    unknown = [key for key in table if key not in known]
    problems += [f"{_shown(key, table)}: unknown key{did_you_mean(key, known)}" for key in unknown]
    plain = {key: table[key] for key in top & set(table)}
    values = _build(Top, plain, "top level:", problems)
    out: dict[str, Any] = {key: values.get(key) for key in top}
    out["name"] = out["name"] or ""
    out["seed"] = out["seed"] or 0
    defaults: dict[str, Any] = {"dynamics": {"use": "ode"}, "estimator": None, "backbone": None}
    for kind, core in _PLUGINS.items():
        raw = table.get(kind, defaults.get(kind))
        out[kind] = _plugin(raw, core, f"[{kind}]", problems)
    for name, cls in _TABLES.items():
        out[name] = _made(cls, table.get(name, {}), f"[{name}]", problems)
    out["rewards"] = _rewards(table.get("reward"), "reward", problems, required=True)
    out["evaluation"] = _evaluation(table.get("evaluation", {}), problems)
    out["observers"] = _observers(table.get("observer", {}), out["output"], problems)
    return out


def _shown(key: str, table: Mapping[str, Any]) -> str:
    return f"[{key}]" if isinstance(table[key], dict) else key


def _build(cls: type, raw: Any, where: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        problems.append(f"{where}: expected a table, got {raw!r}")
        return {}
    values, found = checked_values(cls, raw, where)
    problems += found
    return values


def _made(cls: type, raw: Any, where: str, problems: list[str]) -> Any:
    before = len(problems)
    values = _build(cls, raw, where, problems)
    return cls(**values) if len(problems) == before else None


def _plugin(raw: Any, core: type, where: str, problems: list[str]) -> PluginTable | None:
    if raw is None:
        problems.append(f'{where}: missing; expected a table with use = "NAME"')
        return None
    if not isinstance(raw, dict):
        problems.append(f"{where}: expected a table, got {raw!r}")
        return None
    use = raw.get("use")
    if not isinstance(use, str) or not use:
        got = f", got {use!r}" if "use" in raw else ""
        problems.append(f"{where} use: expected the name of a plugin{got}")
    own = {f.name for f in attrs.fields(core)}
    made = _made(core, {k: v for k, v in raw.items() if k in own}, where, problems)
    settings = {k: v for k, v in raw.items() if k not in own and k != "use"}
    return PluginTable(str(use), attrs.asdict(made) if made is not None else {}, settings)


def _rewards(
    raw: Any, where: str, problems: list[str], *, required: bool
) -> dict[str, PluginTable]:
    if raw is None and not required:
        return {}
    if not isinstance(raw, dict) or not raw:
        problems.append(f'[{where}]: expected at least one table [{where}.KEY] with use = "NAME"')
        return {}
    taken = [k for k in raw if k in ("total", "seconds") or k.endswith("_se")]
    problems += [f"[{where}.{k}]: the name is that of a metric; choose another" for k in taken]
    odd = [k for k in raw if not re.fullmatch(r"[\w-]+", k)]
    problems += [f"[{where}.{k!r}]: expected letters, digits, _ and - in a name" for k in odd]
    # A held-out reward has no weight: nothing is summed.
    core = RewardKeys if required else NoKeys
    tables = {k: _plugin(v, core, f"[{where}.{k}]", problems) for k, v in raw.items()}
    return {key: table for key, table in tables.items() if table is not None}


def _observers(raw: Any, output: OutputTable | None, problems: list[str]) -> dict[str, PluginTable]:
    """[observer.NAME], the settings of an observer that [output] trackers names."""
    if not isinstance(raw, dict):
        problems.append(f"[observer]: expected tables [observer.NAME], got {raw!r}")
        return {}
    odd = [name for name, settings in raw.items() if not isinstance(settings, dict)]
    problems += [f"[observer.{n}]: expected a table, got {raw[n]!r}" for n in odd]
    names = output.trackers if output is not None else tuple(raw)
    problems += [
        f"[observer.{name}]: nothing reads it; [output] trackers does not name {name!r}"
        f"{did_you_mean(name, names)}"
        for name in raw
        if name not in names
    ]
    return {name: PluginTable(name, {}, raw[name]) for name in raw if name not in odd}


def _evaluation(raw: Any, problems: list[str]) -> Evaluation | None:
    if not isinstance(raw, dict):
        problems.append(f"[evaluation]: expected a table, got {raw!r}")
        return None
    rest = {key: value for key, value in raw.items() if key not in ("reward", "rewards")}
    if "rewards" in raw:
        problems.append("[evaluation] rewards: unknown key; did you mean 'reward'?")
    made = _made(Evaluation, rest, "[evaluation]", problems)
    rewards = _rewards(raw.get("reward"), "evaluation.reward", problems, required=False)
    return None if made is None else attrs.evolve(made, rewards=rewards)
