"""Imports of other people's code: a failure is told in one line, and what it changes is put back.

A working directory, a signal handler or a default dtype that an import leaves behind would change
everything else in the run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

TRACEBACK = "HEADWATER_TRACEBACK"


class ImportFault(Exception):
    """Why an import path gives nothing that can be used, in one line."""


def imported(target: str) -> Any:
    """The object of an import path, `module:attribute`. ImportFault where there is none.

    What it prints goes to the error stream: a command's output may be JSON.
    """
    module, _, attributes = target.partition("[")[0].strip().partition(":")
    names = [name.strip() for name in attributes.split(".") if name]
    with _unchanged(target), redirect_stdout(sys.stderr), _not_asked() as asked:
        try:
            return reduce(getattr, names, import_module(module.strip()))
        except BaseException as error:
            if asked:
                raise
            if os.environ.get(TRACEBACK):
                traceback.print_exc()
            raise ImportFault(said(error)) from error


def said(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - its own code makes the text
        text = "an error whose text cannot be shown"
    shown = text if len(text) <= 600 else f"{text[:600]} ..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


@contextmanager
def _not_asked() -> Iterator[list[int]]:
    """Yields a list that is not empty once somebody has pressed Ctrl-C."""
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield asked
        return

    def handler(number: int, frame: Any) -> None:
        asked.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, handler)
    try:
        yield asked
    finally:
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _unchanged(target: str) -> Iterator[None]:
    """Puts back what an import changes for the whole process, and warns of it."""
    before = {name: read() for name, (read, _) in _STATE.items()}
    path = list(sys.path)
    try:
        yield
    finally:
        # New places go last, where they shadow nothing.
        sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
        changed = [
            name
            for name, (read, write) in _STATE.items()
            if read() != before[name] and write(before[name])
        ]
    if changed:
        warnings.warn(f"importing {target} changes {', '.join(changed)}; put back", stacklevel=4)


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _set_directory(value: str) -> bool:
    if value:
        os.chdir(value)
    return bool(value)


def _handler(number: int) -> _Pair:
    def write(value: Any) -> bool:
        if value is not None:  # else it was not installed from Python
            signal.signal(number, value)
        return value is not None

    return lambda: signal.getsignal(number), write


def _errors() -> list[Any]:
    return [known for known in warnings.filters if known[0] == "error"]


def _set_errors(value: list[Any]) -> bool:
    kept = [known for known in warnings.filters if known[0] != "error" or known in value]
    warnings.filters[:] = kept  # type: ignore[index]
    return True


def _of_torch(fresh: str, read: Callable[[Any], str], write: Callable[[Any, str], None]) -> _Pair:
    """A default of torch, which is `fresh` before torch is imported."""

    def value() -> str:
        torch = sys.modules.get("torch")
        return fresh if torch is None else read(torch)

    def put_back(value: str) -> bool:
        write(sys.modules["torch"], value)
        return True

    return value, put_back


_Pair = tuple[Callable[[], Any], Callable[[Any], bool]]
_STATE: dict[str, _Pair] = {
    "the working directory": (_directory, _set_directory),
    "the handler of SIGINT": _handler(signal.SIGINT),
    "the handler of SIGTERM": _handler(signal.SIGTERM),
    "which warnings are errors": (_errors, _set_errors),
    "torch's default dtype": _of_torch(
        "float32",
        lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda torch, value: torch.set_default_dtype(getattr(torch, value)),
    ),
    "torch's default device": _of_torch(
        "cpu",
        lambda torch: str(torch.get_default_device()),
        lambda torch, value: torch.set_default_device(None if value == "cpu" else value),
    ),
    "autograd's mode": _of_torch(
        "True",
        lambda torch: str(torch.is_grad_enabled()),
        lambda torch, value: torch.set_grad_enabled(value == "True"),
    ),
}
"""What an import may change: how it is read, and put back; False where that cannot be."""
