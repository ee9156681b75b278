"""The kit's pytest plugin: `pytest_plugins = ["headwater.testing.fixtures"]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headwater.installed import Entry
    from headwater.testing.fresh import Fresh


def settings_of_contract(request: pytest.FixtureRequest, found: Any) -> dict[str, Any]:
    """A contract's `settings`: a mapping, a method that asks for fixtures, or a fixture."""
    if isinstance(found, Mapping):
        return dict(found)
    if not inspect.isfunction(found):
        return dict(request.getfixturevalue("settings"))
    names = list(inspect.signature(found).parameters)[1:]
    asked = {name: request.getfixturevalue(name) for name in names}
    return dict(found(request.cls(), **asked))


@pytest.fixture(scope="class")
def headwater_table(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a contract class, as a table of a run file."""
    return settings_of_contract(request, request.cls.settings)


@pytest.fixture(scope="class")
def headwater_entry(request: pytest.FixtureRequest) -> Entry:
    """The metadata of a contract class's plugin."""
    from headwater.discovery import find

    contract: Any = request.cls
    owner = contract.__name__
    assert contract.name, f'{owner} names no plugin: set name = "its entry-point name"'
    return find(contract.kind, contract.name)


@pytest.fixture(scope="class")
def headwater_loaded(request: pytest.FixtureRequest, headwater_table: dict[str, Any]) -> Any:
    """The plugin of a contract class with its weights, loaded once."""
    return request.cls().load_fresh(headwater_table)


@pytest.fixture(scope="session")
def headwater_fresh() -> Iterator[Fresh]:
    """A process that imports and constructs plugins and says what they did."""
    from headwater.testing.fresh import Fresh

    fresh = Fresh()
    yield fresh
    fresh.close()


@pytest.fixture(scope="session")
def headwater_toys_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the metadata of the toy plugins."""
    from headwater.testing import plugins
    from headwater.testing.packages import write_package

    names = sorted(set(plugins.ENTRY_POINTS.values()))
    source = f"from headwater.testing.plugins import {', '.join(names)}\n"
    folder = tmp_path_factory.mktemp("headwater-toys")
    return write_package(folder, "headwater-toys", plugins.ENTRY_POINTS, source)


@pytest.fixture(scope="class")
def headwater_toys(headwater_toys_folder: Path) -> Iterator[None]:
    """Offers the toy plugins by name (`toy`, `toy-noise`, `toy-policy`, ...)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(headwater_toys_folder))
        yield
    # A third party's test may have put its own folder in front, which stays.
    assert str(headwater_toys_folder) not in sys.path


@pytest.fixture(scope="session")
def headwater_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`headwater_pipeline("sd3")`: the folder of a family's tiny diffusers pipeline, made once."""
    from headwater.testing import pipelines

    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            target = tmp_path_factory.mktemp(f"tiny-{family}") / "model"
            made[family] = pipelines.saved(pipelines.FAMILIES[family], target)
        return made[family]

    return folder
