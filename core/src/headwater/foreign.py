"""Imports of other people's code: what it breaks is put right and told, and nobody else's.

An import may fail in any way, and it may change what belongs to the whole process. A working
directory, a signal handler or a default dtype that an import leaves behind would change a run
that only names the package; such an import counts as broken.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
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
    with _unchanged(), redirect_stdout(sys.stderr), _not_asked() as asked:
        try:
            return reduce(getattr, names, import_module(module.strip()))
        except BaseException as error:
            if asked or os.environ.get(TRACEBACK):
                raise
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
def _unchanged() -> Iterator[None]:
    """Puts back what an import changed for the whole process; ImportFault tells of it."""
    before = {name: read() for name, (read, _) in _STATE.items()}
    path = list(sys.path)
    try:
        yield
    finally:
        _append_new(path)
        changed = [
            f"{name}, from {_shown(before[name])} to {_shown(now)}"
            for name, (read, write) in _STATE.items()
            if (now := read()) != before[name] and write(before[name])
        ]
    if changed:
        raise ImportFault(f"its import changes {'; '.join(changed)}")


def _append_new(path: list[str]) -> None:
    """New places of `sys.path` go last, where they shadow nothing."""
    sys.path[:] = [*path, *(place for place in sys.path if place not in path)]


def _shown(value: Any) -> str:
    return getattr(value, "__qualname__", None) or str(value)


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _set_directory(value: str) -> bool:
    if value:
        os.chdir(value)
    return bool(value)


def _handler(number: int) -> Callable[[], Any]:
    return lambda: signal.getsignal(number)


def _set_handler(number: int) -> Callable[[Any], bool]:
    def write(value: Any) -> bool:
        signal.signal(number, value)
        return True

    return write


def _of_torch(read: Callable[[Any], str], fresh: str) -> Callable[[], str]:
    """A default of torch, which is `fresh` before torch is imported."""

    def value() -> str:
        torch = sys.modules.get("torch")
        return fresh if torch is None else read(torch)

    return value


def _set_dtype(value: str) -> bool:
    torch: Any = sys.modules["torch"]
    torch.set_default_dtype(getattr(torch, value.removeprefix("torch.")))
    return True


def _set_device(value: str) -> bool:
    torch: Any = sys.modules["torch"]
    torch.set_default_device(None if value == "cpu" else value)
    return True


def _set_autograd(value: str) -> bool:
    torch: Any = sys.modules["torch"]
    torch.set_grad_enabled(value == "on")
    return True


_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]] = {
    "the working directory": (_directory, _set_directory),
    "the handler of SIGINT": (_handler(signal.SIGINT), _set_handler(signal.SIGINT)),
    "the handler of SIGTERM": (_handler(signal.SIGTERM), _set_handler(signal.SIGTERM)),
    "torch's default dtype": (
        _of_torch(lambda torch: str(torch.get_default_dtype()), "torch.float32"),
        _set_dtype,
    ),
    "torch's default device": (
        _of_torch(lambda torch: str(torch.get_default_device()), "cpu"),
        _set_device,
    ),
    "autograd": (
        _of_torch(lambda torch: "on" if torch.is_grad_enabled() else "off", "on"),
        _set_autograd,
    ),
}
