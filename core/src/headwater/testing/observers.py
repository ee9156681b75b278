"""The contract of an observer."""

from __future__ import annotations

from typing import ClassVar

from headwater.testing.contract import PluginContract


class ObserverContract(PluginContract):
    """What an observer owes."""

    kind: ClassVar[str] = "observer"
