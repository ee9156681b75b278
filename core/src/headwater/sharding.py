"""FSDP2: each process holds a part of every frozen or trained weight of the network.

Blocks are sharded one by one, then the rest. A LoRA's few tensors stay whole on every process, so
that they may be float32 on half weights; their gradients are averaged like replicated ones.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from headwater import processes
from headwater.errors import InputError


def asked_for() -> bool:
    """Whether the launcher asks for FSDP2: `accelerate launch --use_fsdp --fsdp_version 2`.

    It says so by environment variables, which also serve under torchrun. InputError for FSDP 1.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() not in ("1", "true"):
        return False
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise InputError("launch", [f"FSDP_VERSION is {version}; only FSDP2 is known here"])
    return processes.world() > 1


def shard(network: nn.Module, trained: Mapping[str, nn.Parameter], device: str) -> None:
    """Shard a network in place. Under full training its parameters become DTensors."""
    mesh = init_device_mesh(torch.device(device).type, (processes.world(),))
    adapter = any(".lora_" in name for name in trained)
    ignored = set(trained.values()) if adapter else None
    # Nothing here changes a velocity in place, which is what the warning is about.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    # Always resharded, the root too: weights that stay gathered would outlive a change of them,
    # such as the moving average's during an evaluation.
    for block in (*_blocks(network), network):
        fully_shard(block, mesh=mesh, ignored_params=ignored, reshard_after_forward=True)


def _blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The members of the network's lists of modules, which run one after the other."""
    for child in network.children():
        if isinstance(child, nn.ModuleList):
            yield from child


def synchronise(network: Any, *, on: bool) -> None:
    """Whether a backward reduces its gradients over the processes, or adds them up here."""
    if isinstance(network, FSDPModule):
        network.set_requires_gradient_sync(on)


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is a process's part of a larger one."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This process's part, sharing its memory; a replicated tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full tensors by name; every process must call it."""
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}


def like(full: Tensor, model: Tensor) -> Tensor:
    """A full tensor cut as `model` is."""
    if not isinstance(model, DTensor):
        return full
    moved = full.to(model.device)
    return distribute_tensor(moved, model.device_mesh, model.placements, src_data_rank=None)
