"""The contract of an algorithm."""

from __future__ import annotations

from typing import ClassVar

from headwater.testing.contract import PluginContract


class AlgorithmContract(PluginContract):
    """What an algorithm owes."""

    kind: ClassVar[str] = "algorithm"
