"""Which estimators are compared: on the command line, or in a table file.

`leapalign{coupling=0.1}` is a plugin's name and its settings as TOML. In a file every table
`[estimator.LABEL]` holds what a run file's `[estimator]` would.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import tomli
import tomli_w

from headwater.errors import InputError

_NAME = re.compile(r"[\w.:-]+")


@attrs.frozen(eq=False)
class Spec:
    """One estimator with its settings, as text and as a table."""

    label: str
    table: Mapping[str, Any]
    """As in a run file: `use`, `draws`, and the plugin's own keys."""

    def overrides(self) -> list[str]:
        """`--set` texts that put the table in the place of a run file's own."""
        use = _literal(self.table["use"])
        pairs = _flat({k: v for k, v in self.table.items() if k != "use"}, "estimator")
        return [f"estimator={{use={use}}}", *(f"{key}={_literal(value)}" for key, value in pairs)]


def read_specs(text: str) -> list[Spec]:
    """From `--estimators`: a comma-separated list, or the name of a TOML file.

    InputError holds every problem of it.
    """
    specs = _from_file(Path(text)) if text.strip().endswith(".toml") else _from_list(text)
    labels = [spec.label for spec in specs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise InputError("--estimators", [f"{label}: listed twice" for label in twice])
    return specs


def _from_list(text: str) -> list[Spec]:
    found, problems = [], []
    for item in _items(text):
        name, _, rest = item.partition("{")
        name = name.strip()
        if not _NAME.fullmatch(name) or (rest and not item.endswith("}")):
            problems.append(f"expected NAME or NAME{{KEY=VALUE, ...}}, got {item!r}")
            continue
        try:
            settings = tomli.loads(f"settings = {{{rest}")["settings"] if rest else {}
        except (tomli.TOMLDecodeError, RecursionError) as error:
            problems.append(f"{item}: not valid TOML: {error}")
            continue
        problems += _own_problems(item, settings, named=True)
        found.append(Spec(item, {"use": name, **settings}))
    if not found and not problems:
        problems.append("expected at least one estimator")
    if problems:
        raise InputError("--estimators", problems)
    return found


def _items(text: str) -> list[str]:
    """Cut at the commas that stand outside braces, brackets and quotes."""
    items, depth, quote, start = [], 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "{[":
            depth += 1
        elif sign in "}]":
            depth -= 1
        elif sign == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    return [item.strip() for item in [*items, text[start:]] if item.strip()]


def _from_file(path: Path) -> list[Spec]:
    table = _parsed(path)
    tables = table.get("estimator")
    problems = [
        f"{key}: unknown key; the file holds tables [estimator.LABEL]"
        for key in table
        if key != "estimator"
    ]
    if not isinstance(tables, dict) or not tables:
        problems.append('expected at least one table [estimator.LABEL] with use = "NAME"')
        raise InputError(str(path), problems)
    for label, one in tables.items():
        if not isinstance(one, dict):
            problems.append(f"[estimator] {label}: expected a table, got {one!r}")
        elif not isinstance(one.get("use"), str):
            problems.append(f"[estimator.{label}] use: expected the name of a plugin")
        else:
            problems += _own_problems(f"[estimator.{label}]", one, named=False)
    if problems:
        raise InputError(str(path), problems)
    return [Spec(label, one) for label, one in tables.items()]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(str(path), [f"no such file{hint}"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), [f"cannot be read: {error}"]) from None
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise InputError(str(path), [f"not valid TOML: {error}"]) from None


def _own_problems(where: str, table: Mapping[str, Any], *, named: bool) -> list[str]:
    """Keys that could not be handed on; everything else is checked as in a run file."""
    problems = [
        f"{where}: expected letters, digits, _ and - in a key, got {key!r}"
        for key, _ in _flat(table, "")
        if not re.fullmatch(r"(\.[\w-]+)+", key)
    ]
    if named and "use" in table:
        problems.append(f"{where}: the name before the brace is what is used; leave 'use' out")
    return problems


def _flat(table: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Dotted keys and the values that are no tables; an empty table is a value."""
    out: list[tuple[str, Any]] = []
    for key, value in table.items():
        inner = isinstance(value, dict) and value
        out += _flat(value, f"{prefix}.{key}") if inner else [(f"{prefix}.{key}", value)]
    return out


def _literal(value: Any) -> str:
    """A TOML value in text."""
    if value == {}:
        return "{}"
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def refuse_estimator_overrides(overrides: Sequence[str]) -> None:
    """InputError for a `--set estimator...` beside `--estimators`, which would not be read."""
    lost = [text for text in overrides if re.match(r"\s*estimator\s*[.=]", text)]
    if lost:
        raise InputError(
            "--set", [f"{text}: give the setting in --estimators, NAME{{...}}" for text in lost]
        )
