"""Whole runs of heavy plugins are long tests."""

import pytest

RUNS = ("test_observers_change_no_weight", "test_a_resumed_run_equals_a_straight_one")


def pytest_collection_modifyitems(items):
    for item in items:
        if getattr(item.cls, "heavy", False) and item.originalname in RUNS:
            item.add_marker(pytest.mark.long)
