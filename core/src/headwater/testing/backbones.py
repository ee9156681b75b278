"""The contract of a backbone."""

from __future__ import annotations

from typing import ClassVar

from headwater.testing.contract import PluginContract


class BackboneContract(PluginContract):
    """What a backbone owes."""

    kind: ClassVar[str] = "backbone"
