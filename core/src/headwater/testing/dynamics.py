"""The contract of dynamics."""

from __future__ import annotations

from typing import ClassVar

from headwater.testing.contract import PluginContract


class DynamicsContract(PluginContract):
    """What dynamics owe."""

    kind: ClassVar[str] = "dynamics"
