"""Prompt lists: text, JSON lines, or a list that a plugin ships."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.discovery import prompt_resource
from headwater.types import Prompt

_KEYS = {"prompt", "negative_prompt", "images", "metadata"}


def read_prompts(name: str, folder: Path) -> tuple[Prompt, ...]:
    """Read a list. ValueError names the file or the package, the line and what is wrong.

    name: a path relative to `folder`, or `PLUGIN:LIST`.
    """
    shipped = prompt_resource(name)
    file = folder / name
    if shipped is None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise ValueError(f"no such prompt list: {file}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
    else:
        text = shipped
    jsonl = name.endswith(".jsonl") or (shipped is not None and text.lstrip().startswith("{"))
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{name} holds no prompt")
    if not jsonl:
        return tuple(Prompt(line.strip()) for _, line in lines)
    return tuple(_from_json(line, f"{name} line {i}") for i, line in lines)


def _from_json(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
        raise ValueError(f"{where}: expected an object with a text 'prompt'")
    if {"tag", "include"} <= set(record) and "metadata" not in record:  # GenEval's own form
        rest = {key: value for key, value in record.items() if key not in _KEYS}
        record = {key: value for key, value in record.items() if key in _KEYS} | {"metadata": rest}
    unknown = sorted(set(record) - _KEYS)
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; keys: {', '.join(sorted(_KEYS))}")
    return Prompt(
        text=record["prompt"],
        negative=_typed(record, "negative_prompt", str, where) or "",
        images=tuple(_typed(record, "images", list, where) or ()),
        metadata=_typed(record, "metadata", dict, where) or {},
    )


def _typed(record: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = record.get(key)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{where}: expected {key} to be a {kind.__name__}, got {value!r}")
    return value
