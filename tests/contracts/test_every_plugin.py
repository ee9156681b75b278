"""No plugin is installed without a contract."""

import importlib
import inspect

import pytest

from headwater.discovery import entries
from headwater.installed import KINDS
from headwater.testing import contract

MODULES = {
    "backbone": "test_backbones",
    "dynamics": "test_dynamics",
    "reward": "test_rewards",
    "algorithm": "test_algorithms",
    "estimator": "test_estimators",
    "observer": "test_observers",
}
EXCUSED: dict[str, str] = {}
"""Plugins without a contract here, and why."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_installed_plugin_has_a_contract_or_a_reason(kind):
    module = importlib.import_module(f"contracts.{MODULES[kind]}")
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass)]
    named = {c.name for c in classes if issubclass(c, contract.PluginContract) and c.kind == kind}
    missing = {entry.name for entry in entries(kind)} - named - set(EXCUSED)
    assert not missing, f"{sorted(missing)}: write a contract case in {MODULES[kind]}.py"
