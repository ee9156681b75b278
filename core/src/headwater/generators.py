"""The process's global random generators, as tensors.

Core draws from generators of its own, each seeded by what it is for. A plugin's library may draw
from the global ones, so a checkpoint holds them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def states() -> dict[str, Tensor]:
    """torch's (CPU and every GPU), numpy's and Python's."""
    out = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        out |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    _, keys, place, has_gauss, gauss = np.random.get_state()
    out["numpy"] = torch.tensor([*map(int, keys), place, has_gauss])
    out["numpy.gauss"] = torch.tensor(float(gauss), dtype=torch.float64)
    _, numbers, spare = random.getstate()
    out["python"] = torch.tensor(numbers)
    out["python.gauss"] = torch.tensor([] if spare is None else [spare], dtype=torch.float64)
    return out


def restore(found: Mapping[str, Tensor]) -> None:
    """Go on from `states`. KeyError, TypeError or ValueError for anything else."""
    for name, state in states().items():
        if name in found and name != "python.gauss" and found[name].shape != state.shape:
            raise ValueError(f"generators: {name} has shape {tuple(found[name].shape)}")
    if found["torch"].dtype != torch.uint8:
        raise ValueError(f"generators: torch is {found['torch'].dtype}")
    keys, gauss = found["numpy"].tolist(), float(found["numpy.gauss"])
    random.setstate(
        (3, tuple(found["python"].tolist()), *(found["python.gauss"].tolist() or [None]))
    )
    np.random.set_state(("MT19937", np.array(keys[:-2], "uint32"), keys[-2], keys[-1], gauss))
    torch.set_rng_state(found["torch"])
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{i}" in found:
            torch.cuda.set_rng_state(found[f"cuda.{i}"], i)
