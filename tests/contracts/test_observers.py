"""Every installed observer passes its contract; the services' in tests/trackers."""

from headwater.testing import ObserverContract


class TestJsonLines(ObserverContract):
    name = "jsonl"


class TestTensorBoard(ObserverContract):
    name = "tensorboard"
