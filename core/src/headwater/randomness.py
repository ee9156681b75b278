"""Randomness from explicit seeds: every draw is a function of what it is for.

A seed depends on the run, the rollout, the prompt's position and the sample, never on the
micro-batch, the process or the order of calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from what it is for, equal on every machine."""
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator_of(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded by `seed_of(*parts)`."""
    return torch.Generator("cpu").manual_seed(seed_of(*parts))


def noise(
    shape: tuple[int, ...],
    seeds: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Standard normal (B, *shape), row b from `seeds[b]` alone.

    Drawn in float32 on the CPU and then cast, so that dtype and device change no draw.
    """
    rows = [torch.randn(shape, generator=torch.Generator("cpu").manual_seed(s)) for s in seeds]
    return torch.stack(rows).to(device=device, dtype=dtype)
