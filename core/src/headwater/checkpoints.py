"""Checkpoints: safetensors and JSON, written whole or not at all, and verified when read.

A checkpoint is a folder. Its manifest holds the size and SHA-256 of every other file; a folder
without a manifest that fits is damaged, and nothing of it is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headwater.errors import DamagedError, InputError
from headwater.run_folder import PARTIAL, sync, writing

FORMAT = 1
WEIGHTS, AVERAGE = "weights.safetensors", "ema.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
LARGEST_JSON = 64 * 2**20
"""Bytes of JSON that are read at most."""

Tensors = Mapping[str, Tensor]


def save(
    folder: Path,
    step: int,
    weights: Tensors,
    average: Tensors,
    state: Mapping[str, Any],
    more: Mapping[str, Tensors] | None = None,
) -> Path:
    """Write `folder/step-NNNNNN`: to a temporary folder, synced, then renamed.

    A whole one of this step that is there already is the same, and stays: replacing it would
    leave a moment without it. A damaged one is replaced.

    more: file stem: tensors, of further files; empty ones are left out.
    Raises OutputError where it cannot be written. The checkpoints before it are untouched.
    """
    target = folder / f"step-{step:06d}"
    if target.exists() and not damage(target):
        return target
    with writing(f"the checkpoint of step {step}", folder.parent):
        partial = folder / f"{PARTIAL}{target.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            files = {WEIGHTS: weights, AVERAGE: average}
            files |= {f"{stem}.safetensors": tensors for stem, tensors in (more or {}).items()}
            _write(partial, files, {"step": step, **state})
            if target.exists():
                _remove(target)
            partial.replace(target)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync(folder)
    return target


def prune(folder: Path, keep_every: int, kept: set[str]) -> None:
    """Remove checkpoints that are neither in `kept` nor at a multiple of `keep_every`.

    Those after the last in `kept` are damaged ones: they stay until their step is written anew.
    """
    every = found(folder)
    last = max((step_of(path) for path in every if path.name in kept), default=0)
    for path in every:
        step = step_of(path)
        wanted = path.name in kept or (keep_every and step and step % keep_every == 0)
        if not wanted and step < last:
            _remove(path)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def found(folder: Path) -> list[Path]:
    """The checkpoints in a run's `checkpoints/`, whole or not, by step."""
    named = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{1,18}", p.name)]
    return sorted(named, key=step_of)


def step_of(path: Path) -> int:
    """Optimizer steps done in a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def whole(
    folder: Path, say: Callable[[str], None], hashed: Collection[str] | None = None
) -> Iterator[Path]:
    """The whole checkpoints in `folder`, newest first; damaged ones are named and skipped.

    hashed: the files whose content is compared with the manifest; None for all.
    """
    for path in reversed(found(folder)):
        reason = damage(path, hashed)
        if reason:
            say(f"{path} is damaged and skipped: {reason}")
        else:
            yield path


def newest(run_folder: Path) -> Path:
    """The newest checkpoint whose weights are whole; InputError where there is none."""
    damaged: list[str] = []
    for path in whole(run_folder / "checkpoints", damaged.append, (WEIGHTS, AVERAGE, STATE)):
        for text in damaged:
            warnings.warn(text, stacklevel=2)
        return path
    raise InputError(str(run_folder), damaged or ["it holds no checkpoint"])


def damage(path: Path, hashed: Collection[str] | None = None) -> str:
    """Why a checkpoint is not what was written; empty where it is whole.

    hashed: the files whose content is compared with the manifest; None for all. Sizes always are.
    """
    try:
        for name, size, digest in _manifest(path):
            _regular(path / name, size)
            if (hashed is None or name in hashed) and _digest(path / name) != digest:
                return f"{name} is not what was written (its SHA-256 differs)"
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror}"
    except ValueError as error:
        return str(error)
    return ""


def read_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint; DamagedError where it is no JSON table."""
    try:
        state = _json(path / STATE)
        if state.get("step") != step_of(path):
            raise ValueError(f"{STATE} is of step {state.get('step')!r}")
    except (OSError, ValueError) as error:
        raise DamagedError(str(path), [str(error)]) from None
    return state


def read_tensors(path: Path, stem: str) -> dict[str, Tensor]:
    """The tensors of a file, empty where the checkpoint has none; DamagedError."""
    file = path / f"{stem}.safetensors"
    if not file.exists():
        return {}
    try:
        return dict(load_file(file))
    except (OSError, ValueError, SafetensorError) as error:
        raise DamagedError(str(path), [f"{file.name} is no safetensors file: {error}"]) from None


def load(folder: Path, which: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights ("ema" or "live") and state of a checkpoint; DamagedError for a damaged one."""
    averaged = which == "ema" and (folder / AVERAGE).exists()
    name = AVERAGE if averaged else WEIGHTS
    reason = damage(folder, (name, STATE))
    if reason:
        raise DamagedError(str(folder), [f"the checkpoint is damaged: {reason}"])
    return read_tensors(folder, Path(name).stem), read_state(folder)


def _write(partial: Path, files: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
    """All files, the manifest last, each synced."""
    names = [STATE]
    (partial / STATE).write_text(json.dumps(state, indent=1))
    for name, tensors in files.items():
        if tensors or name == WEIGHTS:
            names.append(name)
            try:
                save_file(_plain(tensors), partial / name)
            except SafetensorError as error:
                raise _as_os_error(error, name) from None
    listed = {}
    for name in names:
        sync(partial / name)
        size = (partial / name).stat().st_size
        listed[name] = {"bytes": size, "sha256": _digest(partial / name)}
    (partial / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": listed}, indent=1))
    sync(partial / MANIFEST)
    sync(partial)


def _as_os_error(error: SafetensorError, name: str) -> OSError:
    """The system's error inside the library's text; EIO where it has none."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code) if number else str(error), name)


def _remove(path: Path) -> None:
    """Out of sight first: a kill in between leaves no half checkpoint under its name."""
    aside = path.with_name(f"{PARTIAL}removed-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.replace(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _manifest(path: Path) -> list[tuple[str, int, str]]:
    """Name, bytes and SHA-256 of each file. ValueError for anything else."""
    table = _json(path / MANIFEST)
    if table.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} has format {table.get('format')!r}, expected {FORMAT}")
    files = table.get("files")
    if not isinstance(files, dict) or not {WEIGHTS, STATE} <= set(files):
        raise ValueError(f"{MANIFEST} does not list {WEIGHTS} and {STATE}")
    out = []
    for name, entry in files.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+\.(safetensors|json)", name):
            raise ValueError(f"{MANIFEST} names {name!r}, which is no file of a checkpoint")
        size, digest = (
            (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (0, 0)
        )
        if type(size) is not int or not isinstance(digest, str):
            raise ValueError(f"{MANIFEST} has no size and SHA-256 of {name}")
        out.append((name, size, digest))
    unlisted = {p.name for p in path.glob("*.safetensors")} - set(files)
    if unlisted:
        raise ValueError(f"{MANIFEST} does not list {sorted(unlisted)[0]}")
    return out


def _regular(file: Path, size: int) -> None:
    """ValueError unless it is a plain file of that size."""
    if not stat.S_ISREG(file.lstat().st_mode):
        raise ValueError(f"{file.name} is no plain file")
    if file.stat().st_size != size:
        raise ValueError(f"{file.name} has {file.stat().st_size} bytes, {size} were written")


def _json(file: Path) -> dict[str, Any]:
    """A JSON table. OSError, or ValueError in the file's name."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_JSON:
        raise ValueError(f"{file.name} is no plain file of at most {LARGEST_JSON} bytes")
    try:
        table = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not valid JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{file.name} is no JSON table")
    return table


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _plain(tensors: Tensors) -> dict[str, Tensor]:
    """On the CPU, contiguous, and no two in one storage, which the format refuses."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        out[name] = plain
    return out
