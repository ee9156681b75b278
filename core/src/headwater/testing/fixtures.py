"""The kit's pytest plugin: `pytest_plugins = ["headwater.testing.fixtures"]`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="class")
def headwater_table(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a contract class, as a table of a run file."""
    contract: Any = request.cls
    found = contract.settings
    if isinstance(found, Mapping):
        return dict(found)
    if not inspect.isfunction(found):  # itself a fixture
        return dict(request.getfixturevalue("settings"))
    names = list(inspect.signature(found).parameters)[1:]
    return dict(found(contract(), **{name: request.getfixturevalue(name) for name in names}))


@pytest.fixture
def headwater_toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the toy plugins by name (`toy`, `toy-noise`, `toy-policy`, ...) within a test."""
    from headwater.testing import plugins
    from headwater.testing.packages import write_package

    names = sorted(set(plugins.ENTRY_POINTS.values()))
    source = f"from headwater.testing.plugins import {', '.join(names)}\n"
    folder = write_package(
        tmp_path / "headwater-toys", "headwater-toys", plugins.ENTRY_POINTS, source
    )
    monkeypatch.syspath_prepend(str(folder))
