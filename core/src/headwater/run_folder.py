"""The run folder: made once, held by one process at a time, its files written whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from headwater.composition import Run, resolved
from headwater.errors import HeadwaterError, InputError, OutputError

PARTIAL = ".partial-"
"""Begins the name of what is not whole yet, or not any more."""
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def new_folder(run: Run, out: str | Path | None) -> Path:
    """Make the run folder and write the resolved run file. Nothing is ever overwritten."""
    folder = Path(out) if out is not None else _free_folder(run.file.name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is not an empty folder" if folder.is_dir() else "is a file"
            if (folder / "run.toml").exists():
                what = "already holds a run"
            begun = any((folder / "checkpoints").glob("step-*"))
            hint = "; --resume goes on with it" if begun else "; take another folder"
            problem = f"the output folder {what}; nothing was written{hint}"
            raise InputError(str(folder), [problem])
        (folder / "samples").mkdir(parents=True)
        write_run_file(run, folder)
    except OSError as error:
        raise InputError(str(folder), [f"the output folder cannot be written: {error}"]) from None
    return folder


def give_back(folder: Path) -> None:
    """Undo `new_folder`, where nothing was written since."""
    (folder / "run.toml").unlink(missing_ok=True)
    for path in (folder / "samples", folder):
        try:
            path.rmdir()
        except OSError:
            return  # somebody else's files are in it


def old_folder(out: str | Path | None) -> Path:
    """The folder of a run that is to go on. InputError where there is none."""
    if out is None:
        raise InputError("--resume", ["it needs --out DIR, the folder of the run to go on with"])
    folder = Path(out)
    if not folder.is_dir():
        raise InputError(str(folder), ["no such folder; there is no run to resume"])
    return folder


def write_run_file(run: Run, folder: Path) -> None:
    """Write `run.toml`, the resolved run file."""
    write_text(folder / "run.toml", tomli_w.dumps(resolved(run)))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Within it no other process may train into the folder. The lock dies with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(handle)
            raise InputError(str(folder), ["another process is training into it"]) from None
        # A file system without locks: whoever starts two runs in it is not stopped.
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Within it an error of the system becomes an OutputError that says what to do."""
    try:
        yield
    except OSError as error:
        raise unwritable(what, folder, error) from error


def unwritable(what: str, folder: Path, error: OSError) -> OutputError:
    """One paragraph: what failed, why, what is left, and how to go on."""
    reason = error.strerror or str(error)
    try:
        reason += f" ({shutil.disk_usage(folder).free / 1e6:.0f} MB are free)"
    except OSError:
        reason += " (its disk cannot be read either)"
    names = sorted((folder / "checkpoints").glob("step-*"), key=lambda p: (len(p.name), p.name))
    last = f"The last checkpoint is {names[-1].name}" if names else "There is no checkpoint yet"
    then = "; the same command with --resume goes on from it once there is room" if names else ""
    return OutputError(f"{folder}: {what} cannot be written: {reason}. {last}{then}.")


def is_unwritable(error: BaseException) -> bool:
    """Whether it says that the disk is full, or cannot be written at all."""
    return isinstance(error, OSError) and error.errno in _UNWRITABLE


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _free_folder(name: str) -> Path:
    for number in range(1, 100000):
        folder = Path("runs") / f"{name}-{number:03d}"
        if not folder.exists():
            return folder
    raise HeadwaterError(f"runs/{name}-NNN: no free number")
