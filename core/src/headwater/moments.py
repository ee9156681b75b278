"""AdamW's states as tensors for a checkpoint and back, in full or in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from headwater import sharding

FULL = {"step", "exp_avg", "exp_avg_sq"}
SMALL_8BIT = {"step", "state1", "state2"}
EIGHT_BIT = {*SMALL_8BIT, "qmap1", "qmap2", "absmax1", "absmax2"}
"""bitsandbytes keeps small tensors in full, others in blocks with a scale each."""


def pack(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Parameter]
) -> dict[str, Tensor]:
    """`KEY/PARAMETER`: every entry of the state. Every process must call it."""
    out = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            out[f"{key}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return sharding.whole(out)


def unpack(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Parameter], states: str
) -> dict[str, dict[str, Any]]:
    """Parameter: its entries, on its device; step counts stay on the CPU.

    states: "full" or "8bit". ValueError where the tensors are no such state.
    """
    out: dict[str, dict[str, Any]] = {}
    for title, tensor in tensors.items():
        key, _, name = title.partition("/")
        if name not in parameters:
            raise ValueError(f"optimizer: {title} belongs to no trained tensor")
        parameter = parameters[name]
        moment = key in ("exp_avg", "exp_avg_sq")
        if moment and (tensor.shape, tensor.dtype) != (parameter.shape, parameter.dtype):
            raise ValueError(f"optimizer: {title} is {tensor.dtype} {tuple(tensor.shape)}")
        if key in ("state1", "state2") and tensor.numel() != parameter.numel():
            raise ValueError(f"optimizer: {title} has {tensor.numel()} elements")
        out.setdefault(name, {})[key] = _placed(key, tensor, parameter, states)
    kinds = (FULL,) if states == "full" else (SMALL_8BIT, EIGHT_BIT)
    for name, entries in out.items():
        if set(entries) not in kinds:
            raise ValueError(f"optimizer: {name} has {', '.join(sorted(entries))}")
    return out


def _placed(key: str, tensor: Tensor, parameter: Parameter, states: str) -> Any:
    """A copy as the optimizer keeps it."""
    if key == "step":
        return tensor.clone() if states == "full" else int(tensor)
    moved = tensor.to(parameter.device, copy=True)
    return sharding.like(moved, parameter) if states == "full" else moved
