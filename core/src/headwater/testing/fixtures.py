"""The kit's pytest plugin: `pytest_plugins = ["headwater.testing.fixtures"]`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
