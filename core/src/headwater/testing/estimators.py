"""The contract of an estimator."""

from __future__ import annotations

from typing import ClassVar

from headwater.testing.contract import PluginContract


class EstimatorContract(PluginContract):
    """What an estimator owes."""

    kind: ClassVar[str] = "estimator"
