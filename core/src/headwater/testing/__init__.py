"""The test kit for plugins: contracts to subclass, toys with closed forms, tiny pipelines.

Opt-in. A test suite says `pytest_plugins = ["headwater.testing.fixtures"]` in its `conftest.py`
and subclasses the contract of its plugin's kind:

    from headwater.testing import EstimatorContract

    class TestEveryOther(EstimatorContract):
        name = "every-other"
        settings = {"first": 1}

Needs pytest (`pip install "headwater[testing]"`). Importing this module imports neither pytest
nor torch; each name below loads its module at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.testing.algorithms import AlgorithmContract
    from headwater.testing.backbones import BackboneContract
    from headwater.testing.dynamics import DynamicsContract
    from headwater.testing.estimators import EstimatorContract
    from headwater.testing.observers import ObserverContract
    from headwater.testing.rewards import RewardContract

_HOMES = {
    "AlgorithmContract": "algorithms",
    "BackboneContract": "backbones",
    "DynamicsContract": "dynamics",
    "EstimatorContract": "estimators",
    "ObserverContract": "observers",
    "RewardContract": "rewards",
}

__all__ = [
    "AlgorithmContract",
    "BackboneContract",
    "DynamicsContract",
    "EstimatorContract",
    "ObserverContract",
    "RewardContract",
]


def __getattr__(name: str) -> Any:
    """Import a contract from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.testing' has no attribute {name!r}")
    return getattr(import_module(f"headwater.testing.{_HOMES[name]}"), name)
