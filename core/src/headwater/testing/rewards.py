"""The contract of a reward."""

from __future__ import annotations

from typing import ClassVar

from headwater.testing.contract import PluginContract


class RewardContract(PluginContract):
    """What a reward owes."""

    kind: ClassVar[str] = "reward"
