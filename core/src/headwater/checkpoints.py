"""Checkpoints: safetensors and JSON, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headwater.errors import InputError

WEIGHTS, AVERAGE, STATE = "weights.safetensors", "ema.safetensors", "state.json"


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    average: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write `folder/step-NNNNNN`: to a temporary folder, synced, then renamed.

    A step that is there already is the same one, and stays: replacing it would leave a moment
    without it.
    """
    target = folder / f"step-{step:06d}"
    if target.exists():
        return target
    partial = folder / f".partial-{target.name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(_plain(weights), partial / WEIGHTS)
    if average:
        save_file(_plain(average), partial / AVERAGE)
    (partial / STATE).write_text(json.dumps({"step": step, **state}, indent=1))
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    partial.replace(target)
    _sync(folder)
    return target


def prune(folder: Path, keep_every: int, kept: set[str]) -> None:
    """Remove checkpoints that are neither in `kept` nor at a multiple of `keep_every`."""
    for path in sorted(folder.glob("step-*")):
        step = int(path.name.removeprefix("step-"))
        if path.name not in kept and not (keep_every and step % keep_every == 0):
            shutil.rmtree(path)


def load(folder: Path, which: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights ("ema" or "live") and state of a checkpoint; InputError for a damaged one."""
    try:
        state = json.loads((folder / STATE).read_text())
        averaged = which == "ema" and (folder / AVERAGE).exists()
        weights = load_file(folder / (AVERAGE if averaged else WEIGHTS))
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(str(folder), [f"the checkpoint cannot be read: {error}"]) from None
    return weights, state


def newest(run_folder: Path) -> Path:
    """The checkpoint of the highest step; InputError where there is none."""
    found = sorted((run_folder / "checkpoints").glob("step-*"))
    if not found:
        raise InputError(str(run_folder), ["it holds no checkpoint"])
    return found[-1]


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
