"""Ctrl-C and SIGTERM: the step is finished and saved; a second one stops at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import attrs


@attrs.define(eq=False)
class Interruption:
    """Whether somebody asked the run to stop."""

    asked: str = ""
    """The signal's name; empty while nobody did."""
    graceful: bool = False
    """Whether there is a step to be finished. Until then the first signal stops at once."""

    def __bool__(self) -> bool:
        return bool(self.asked)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it the two signals are asked for here. Outside the main thread they are not."""
        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._ask)
        except ValueError:
            before = {}  # not the main thread: signals are the caller's
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _: object) -> None:
        if self.asked or not self.graceful:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
        os.write(2, b"\nfinishing this step, then a checkpoint; once more stops at once\n")
