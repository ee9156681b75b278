"""Every installed observer passes its contract, where its service's library is there."""

from headwater.testing import ObserverContract


class TestJsonLines(ObserverContract):
    name = "jsonl"


class TestTensorBoard(ObserverContract):
    name = "tensorboard"
