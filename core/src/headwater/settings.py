"""Strict settings: a TOML table becomes an attrs class, or a list of problems.

cattrs converts the values, with exact hooks: 1.5 is no whole number, "false" no truth value and
an unknown key an error. Every field is judged by itself, so that all problems of a table are
found at once and a validator's own text is kept.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import cattrs

from headwater.errors import did_you_mean

MISSING = object()

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def structure(cls: type, table: Mapping[str, Any], where: str) -> tuple[Any, list[str]]:
    """Make a `cls` of a table.

    where: the table's name for messages, `[estimator]` for instance.
    Returns: the instance (None if there is a problem), and the problems. What the constructor
    raises leaves it, but for a ValueError where the table sets anything.
    """
    values, problems = checked_values(cls, table, where)
    if problems:
        return None, problems
    try:
        return cls(**values), []
    except ValueError as error:  # a check across fields, in the plugin's own words
        if not table:
            raise  # it refuses its own defaults
        return None, [f"{where}: {error}"]


def checked_values(
    cls: type, table: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], list[str]]:
    """Values for the constructor of `cls`, and all problems of the table."""
    fields = {f.name: f for f in settings_of(cls)}
    problems = [
        f"{where} {key}: unknown key{did_you_mean(key, fields)}"
        for key in table
        if key not in fields
    ]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        raw = table.get(name, MISSING)
        if raw is MISSING:
            if field.default is attrs.NOTHING:
                problems.append(f"{where} {name}: missing; expected {expected(field.type)}")
            continue
        try:
            values[name] = _value(field, raw)
        except ValueError as error:
            problems.append(f"{where} {name}: {error}")
    return values, problems


def settings_of(cls: type) -> list[attrs.Attribute[Any]]:
    """The fields of a class that a table may set, types resolved."""
    attrs.resolve_types(cls, include_extras=True)
    return [f for f in attrs.fields(cls) if f.init and not f.name.startswith("_")]


def _value(field: attrs.Attribute[Any], raw: Any) -> Any:
    kind: Any = field.type
    value = CONVERTER.structure(raw, kind)
    if field.converter is not None:
        value = field.converter(value)  # type: ignore[operator]
    if field.validator is not None:
        shown = raw if value == raw and not isinstance(raw, (list, dict)) else value
        field.validator(None, field, shown)
    return value


def expected(kind: Any) -> str:
    """What a type accepts, in words."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(expected(a) for a in arguments if a is not type(None))
    if origin in (list, tuple):
        inner = [a for a in arguments if a is not Ellipsis]
        count = "" if origin is list or Ellipsis in arguments else f" of {len(inner)}"
        return f"a list{count}, each {expected(inner[0])}"
    if origin in (dict, Mapping, typing.get_origin(Mapping[str, int])):
        return f"a table, each value {expected(arguments[1])}"
    return "a table" if attrs.has(kind) else getattr(kind, "__name__", str(kind))


def _wrong(raw: Any, kind: Any) -> ValueError:
    return ValueError(f"expected {expected(kind)}, got {raw!r}")


def _structure_primitive(raw: Any, kind: type) -> Any:
    exact = isinstance(raw, kind) and not (kind is not bool and isinstance(raw, bool))
    if exact:
        return raw
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        try:
            return float(raw)
        except OverflowError:
            raise _wrong(f"a whole number of {len(str(raw))} digits", kind) from None
    raise _wrong(raw, kind)


def _structure_literal(raw: Any, kind: Any) -> Any:
    for choice in get_args(kind):
        if type(raw) is type(choice) and raw == choice:
            return choice
    hint = did_you_mean(raw, [str(c) for c in get_args(kind)]) if isinstance(raw, str) else ""
    raise ValueError(f"{_wrong(raw, kind)}{hint}")


def _structure_union(raw: Any, kind: Any) -> Any:
    if raw is None and type(None) in get_args(kind):
        return None
    for choice in get_args(kind):
        if choice is type(None):
            continue
        try:
            return CONVERTER.structure(raw, choice)
        except ValueError:
            if attrs.has(choice) and isinstance(raw, Mapping):
                raise  # a table is meant, and it says itself what is wrong with it
    raise _wrong(raw, kind)


def _structure_sequence(raw: Any, kind: Any) -> Any:
    arguments = get_args(kind)
    if not isinstance(raw, (list, tuple)):
        raise _wrong(raw, kind)
    if get_origin(kind) is list or arguments[-1] is Ellipsis:
        items = [CONVERTER.structure(item, arguments[0]) for item in raw]
    elif len(raw) != len(arguments):
        raise _wrong(raw, kind)
    else:
        items = [CONVERTER.structure(r, a) for r, a in zip(raw, arguments, strict=True)]
    return items if get_origin(kind) is list else tuple(items)


def _structure_mapping(raw: Any, kind: Any) -> Any:
    if not isinstance(raw, Mapping):
        raise _wrong(raw, kind)
    inner = get_args(kind)[1] if get_args(kind) else Any
    if inner is Any:
        return dict(raw)
    return {str(key): CONVERTER.structure(value, inner) for key, value in raw.items()}


def _structure_nested(raw: Any, kind: Any) -> Any:
    if not isinstance(raw, Mapping):
        raise _wrong(raw, kind)
    value, problems = structure(kind, raw, "")
    if problems:
        raise ValueError("; ".join(problem.strip() for problem in problems))
    return value


def _of_origin(origins: tuple[Any, ...]) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) in origins


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    for kind in _WORDS:
        converter.register_structure_hook(kind, _structure_primitive)
    by_origin = {
        (Literal,): _structure_literal,
        (Union, types.UnionType): _structure_union,
        (list, tuple): _structure_sequence,
        (dict, typing.get_origin(Mapping[str, int])): _structure_mapping,
    }
    for origins, hook in by_origin.items():
        converter.register_structure_hook_func(_of_origin(origins), hook)
    converter.register_structure_hook_func(attrs.has, _structure_nested)
    return converter


CONVERTER = _converter()


def unstructure(plugin: Any) -> dict[str, Any]:
    """A table that gives this plugin back; unset (None) keys are left out."""
    table: dict[str, Any] = {}
    for field in settings_of(type(plugin)):
        value = getattr(plugin, field.name)
        if value is not None:
            table[field.name] = CONVERTER.unstructure(value)
    return table


def field_docs(cls: type) -> dict[str, str]:
    """The docstring written under each field, by field name."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        docs |= _own_field_docs(base)
    return docs


@lru_cache(maxsize=1024)
def _own_field_docs(base: type) -> Mapping[str, str]:
    """Those of the fields that a class itself defines, read from its source."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}  # a class made at run time has no source, hence no field docs
    docs: dict[str, str] = {}
    for statement, after in pairwise(getattr(body, "body", [])):
        named = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[statement.target.id] = inspect.cleandoc(str(after.value.value))
    return docs
