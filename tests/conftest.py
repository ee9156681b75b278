"""One thread: the tests' tensors are small, and several test processes share the machine.

Whole runs of a contract are long tests, but for one plugin or two of each kind.
"""

import signal

import pytest
import torch

torch.set_num_threads(1)
# A shell's background job ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["headwater.testing.fixtures"]

RUNS = (
    *("test_observers_change_no_weight", "test_a_resumed_run_equals_a_straight_one"),
    *("test_it_changes_no_weight", "test_it_works_without_a_network_and_fails_in_nothing"),
    *("test_it_writes_in_the_run_folder_alone", "test_no_thread_outlives_the_run"),
)
QUICK = (
    *("TestBptt", "TestJagg", "TestLagrange", "TestDirect", "TestFlowGrpo", "TestFlowSde"),
    *("TestTinyPreference", "TestMixture", "TestJsonLines"),
)


def pytest_collection_modifyitems(items):
    for item in items:
        cls = item.cls
        ours = cls is not None and hasattr(cls, "kind")
        if ours and item.originalname in RUNS and cls.__name__ not in QUICK:
            item.add_marker(pytest.mark.long)
