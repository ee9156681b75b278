"""Markdown of values, docstrings and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from headwater.settings import unstructure


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells lose their line breaks."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines)


def cell(text: str) -> str:
    """Text fit for a table cell: one line, no bare bar."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def value(found: Any) -> str:
    """A default as a run file writes it, as code; empty where there is none."""
    if found is attrs.NOTHING:
        return ""
    if isinstance(found, attrs.Factory):  # type: ignore[arg-type]
        found = found.factory()
    if attrs.has(type(found)):
        found = unstructure(found)
    return f"`{toml(found)}`"


def toml(found: Any) -> str:
    """A value in TOML's notation."""
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, str):
        return f'"{found}"'
    if isinstance(found, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in found) + "]"
    if isinstance(found, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in found.items()) + "}"
    return "none" if found is None else str(found)


def escaped(text: str) -> str:
    """Prose of a docstring: what is no code keeps its stars, underscores and brackets."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_\[])", r"\\\1", part.replace("<", "&lt;"))
        for part in parts
    )


def docstring(text: str) -> str:
    """Paragraphs as they are; lines such as `images: (B, 3, H, W)` become a list."""
    out = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        items: list[str] = []
        for line in lines:
            named = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*|Returns|Raises): ", line)
            if named:
                items.append(f"- **{escaped(named[1])}**: {escaped(line[named.end() :])}")
            elif line.startswith("- "):
                items.append("- " + escaped(line[2:]))
            elif items:
                items[-1] += " " + escaped(line.strip())
            else:
                items.append(escaped(line.strip()))
        plain = [item for item in items if not item.startswith("- ")]
        listed = [item for item in items if item.startswith("- ")]
        out += [part for part in (" ".join(plain), "\n".join(listed)) if part]
    return "\n\n".join(out)
