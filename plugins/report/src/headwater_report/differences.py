"""The keys in which run files differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def flat(table: Mapping[str, Any], start: str = "") -> dict[str, str]:
    """`a.b.c`: the value as text. An empty table is a value."""
    out: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{start}{key}.")
        else:
            out[start + key] = json.dumps(value, ensure_ascii=False, default=str)
    return out


def differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Exactly the keys whose values are not the same in all tables, with them; None: not there."""
    every = [flat(table) for table in tables]
    keys = dict.fromkeys(key for table in every for key in table)
    rows = {key: [table.get(key) for table in every] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}
