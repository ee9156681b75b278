"""Named tensors from files that others made: safetensors, or a pickle of tensors alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Named tensors of a safetensors file, or of a pickle that holds tensors and nothing else.

    A pickle may keep them under `state_dict` or `model`, as training code saves them. No code of
    it is run. ValueError where the file is missing, damaged or no checkpoint, or would run code.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{path} cannot be read as named tensors: it is damaged, no checkpoint, or a pickle "
            f"that would run code ({type(error).__name__}: {reason})"
        ) from error
    for inner in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(inner), dict):
            found = found[inner]
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{path} holds no named tensors but a {type(found).__name__}")
    wrong = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ValueError(f"{path} holds more than tensors: {', '.join(wrong[:3])}")
    return found


def save_safetensors(source: str | Path, target: str | Path) -> None:
    """Rewrite a pickle of tensors once, under the same names, as a file that runs no code."""
    from safetensors.torch import save_file

    state = {name: value.contiguous().clone() for name, value in read_tensors(source).items()}
    save_file(state, target)
