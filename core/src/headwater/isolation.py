"""Global state that training depends on, put back after somebody else's code has run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def isolated() -> Iterator[None]:
    """Within it generators and modes may change; afterwards they are as before.

    They are the global generators of torch (on the CPU and the GPUs in use), numpy and Python,
    and torch's grad mode, default dtype and device, threads, precision of float32 products and
    determinism.
    """
    before = [read() for read, _ in _STATE]
    modes = [read() for read, _ in _MODES]
    try:
        yield
    finally:
        for (read, write), value in zip(_MODES, modes, strict=True):
            if read() != value:
                write(value)
        for (_, write), value in zip(_STATE, before, strict=True):
            write(value)


def _gpu_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_gpu_states(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        torch.cuda.set_rng_state(state, index)


def _determinism() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _set_determinism(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


_Pair = tuple[Callable[[], Any], Callable[[Any], object]]
_STATE: tuple[_Pair, ...] = (
    (torch.get_rng_state, torch.set_rng_state),
    (_gpu_states, _set_gpu_states),
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
)
_MODES: tuple[_Pair, ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_determinism, _set_determinism),
)
