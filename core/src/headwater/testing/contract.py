"""What every plugin owes, whatever its kind.

A contract is a plain pytest class. A subclass names its plugin by its entry point, each method is
one check, and a check that fails says what to change.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest


class PluginContract:
    """Checks of any kind of plugin. Subclass the contract of a kind, not this."""

    kind: ClassVar[str]
    name: ClassVar[str] = ""
    """Entry-point name, or `distribution:name` where two packages offer it."""
    settings: Any = {}
    """Keys of its table: a mapping, or a method that takes fixtures by name and returns one."""

    @pytest.fixture
    def plugin(self, headwater_table: dict[str, Any]) -> Any:
        """The plugin, made as a run makes it; nothing is loaded."""
        from headwater.discovery import load

        assert self.name, f"{type(self).__name__} names no plugin; set name = its entry-point name"
        return load(self.kind, self.name, headwater_table)

    def test_it_fits_the_hook_specs(self, plugin: Any) -> None:
        """Its hook implementations exist in headwater's specs and take their arguments."""
        from headwater.composition import Named, new_manager, observer_manager, register
        from headwater.discovery import find

        named = Named(self.kind, plugin, find(self.kind, self.name))
        if self.kind == "observer":
            observer_manager([named])
        else:
            register(new_manager(), named)
