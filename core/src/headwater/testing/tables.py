"""Settings as tables: to TOML and back, and values that must be refused."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import attrs
import tomli_w

ABSENT = object()


@attrs.frozen(eq=False)
class Declared:
    """A declaration: which values mean something, and that in words."""

    fits: Callable[[Any], bool]
    words: str


def _one_of(*choices: Any) -> Declared:
    return Declared(lambda v: v in choices, "one of " + ", ".join(map(repr, choices)))


def _texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, str) and v for k, v in value.items()
    )


_TRUTH = Declared(lambda v: isinstance(v, bool), "True or False")
DECLARED: Mapping[str, Mapping[str, Declared]] = {
    "backbone": {
        "guidance_kind": _one_of("none", "embedded", "classifier-free"),
        "loads_on_meta": _TRUTH,
    },
    "dynamics": {"stochastic": _TRUTH},
    "reward": {
        "differentiable": _TRUTH,
        "needs_text": _TRUTH,
        "loads_on_meta": _TRUTH,
        "margin": Declared(
            lambda v: v is None or (isinstance(v, (int, float)) and not isinstance(v, bool)),
            "a number, or None where it states none",
        ),
    },
    "algorithm": {
        "upstream": _one_of("endpoint", "per-step"),
        "needs_stochastic_steps": _TRUTH,
        "reference_model": _one_of("none", "adapter", "copy"),
        "shared_start_noise": _TRUTH,
    },
    "estimator": {
        "upstream": _one_of("endpoint", "per-step"),
        "endpoint": _one_of("sample", "posterior-mean", "sample-and-renoised", "none"),
        "exact": _TRUTH,
        "choices": Declared(
            lambda v: _texts(v) and {*v} == {"endpoint", "active", "weights", "coupling"},
            "its endpoint, active, weights and coupling in words",
        ),
    },
    "observer": {},
}
"""Class attributes, fields and properties by which a plugin of a kind says what it can do."""
ANY: Mapping[str, Declared] = {
    "paper": Declared(
        lambda v: bool(re.fullmatch(r"arXiv \d{4}\.\d{4,5}|https?://\S+|", str(v))),
        '"arXiv NNNN.NNNNN" or a URL',
    ),
    "metrics": Declared(_texts, "a mapping of metric names to what they mean"),
}
"""What a plugin of any kind may declare."""


def variants(cls: type, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A table, and it with every choice of each Literal and truth value that the class takes."""
    from headwater.settings import settings_of, structure

    yield dict(table)
    for field in settings_of(cls):
        choices: tuple[Any, ...] = (True, False) if field.type is bool else ()
        if get_origin(field.type) is Literal:
            choices = get_args(field.type)
        for choice in choices:
            changed = {**table, field.name: choice}
            if not structure(cls, changed, "")[1]:  # it may contradict another field
                yield changed


def lost(cls: type, table: Mapping[str, Any]) -> str:
    """Which field does not come back from TOML, and how; an empty text if all do."""
    from headwater.settings import settings_of, structure, unstructure

    made, _ = structure(cls, table, "")
    try:
        text = tomli_w.dumps(unstructure(made))
    except (TypeError, ValueError) as error:
        return f"its settings are no TOML: {error}"
    again, problems = structure(cls, tomllib.loads(text), "")
    if problems:
        return f"its own settings are refused: {'; '.join(problems)}"
    for field in settings_of(cls):
        before, after = getattr(made, field.name), getattr(again, field.name)
        if not same(before, after):
            return f"{field.name} was {before!r} and comes back as {after!r}"
    return ""


def same(one: Any, other: Any) -> bool:
    """Equal values; attrs objects by their fields, at any depth."""
    if type(one) is not type(other):
        return False
    if attrs.has(type(one)):
        names = [f.name for f in attrs.fields(type(one)) if f.init]
        return all(same(getattr(one, n), getattr(other, n)) for n in names)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def misfits(cls: type) -> Iterator[tuple[str, Any]]:
    """(field, value) pairs that the class must refuse."""
    from headwater.settings import settings_of

    for field in settings_of(cls):
        yield field.name, datetime.date(2024, 2, 29)
        if field.type in (int, float, bool):
            yield field.name, "1"
        if field.type is int:
            yield field.name, 1.5
        if field.type is bool:
            yield field.name, 1
        if field.type is str:
            yield field.name, 1


def refusal(cls: type, table: Mapping[str, Any], field: str) -> str:
    """What is wrong with how a class takes a table with a wrong value; empty if it refuses it."""
    from headwater.settings import structure

    shown = f"{field} = {table[field]!r}"
    try:
        _, problems = structure(cls, table, "[table]")
    except Exception as error:  # noqa: BLE001 - it should have been a problem of the table
        return f"{shown} raises {type(error).__name__}: {error}; a validator raises ValueError"
    if not problems:
        return f"{shown} is accepted; give the field a type that TOML values can be held against"
    if not any(field in problem for problem in problems):
        return f"{shown} is refused by {problems[0]!r}, which does not name the field"
    return ""


def shared_state(one: Any, other: Any) -> str:
    """Name of a mutable field that two plugins share; empty if none."""
    for field in attrs.fields(type(one)):
        value = getattr(one, field.name)
        mutable = isinstance(value, (list, dict, set, bytearray))
        if mutable and value is getattr(other, field.name):
            return str(field.name)
    return ""


def plain(value: Any) -> Any:
    """Settings as JSON takes them: paths become text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, float, bool, str)) or value is None else str(value)
