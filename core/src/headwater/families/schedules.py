"""Sigma grids and latent sizes of the families, from configurations alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headwater.types import Request


def scheduler_sigmas(
    config: Mapping[str, Any], steps: int, mu: float | None = None, *, even: bool = True
) -> Tensor:
    """(N + 1,) float32 on the CPU, by the model's own scheduler.

    config: the scheduler's. mu: the dynamic shift, where the scheduler uses one. even: hand it
    the grid 1, 1 - 1/N, ..., 1/N, as the FLUX and Qwen pipelines do; else it makes its own.
    """
    import numpy as np
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler.from_config(dict(config))
    settings: dict[str, Any] = {"mu": mu} if config.get("use_dynamic_shifting") else {}
    if even:
        settings["sigmas"] = np.linspace(1.0, 1 / steps, steps)
    with np.errstate(invalid="ignore", divide="ignore"):
        scheduler.set_timesteps(steps, **settings)
    found: Tensor = scheduler.sigmas.float().cpu()
    if not bool(found.isfinite().all()):  # its last sigma is stretched to, which takes two
        raise ValueError(f"this model's scheduler makes no grid of {steps} step; take 2 or more")
    return found


def linear_mu(config: Mapping[str, Any], tokens: int) -> float:
    """Dynamic shift of FLUX.1 and Qwen-Image: linear in the number of image tokens.

    Constants are the scheduler's; FLUX.1-dev: 0.5 at 256 tokens, 1.15 at 4096.
    """
    low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    first, last = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    slope = (last - first) / (high - low)
    return float(tokens * slope + first - slope * low)


def empirical_mu(tokens: int, steps: int) -> float:
    """Dynamic shift of FLUX.2: linear in the steps between fits at 10 and at 200 steps."""
    at_200 = 0.00016927 * tokens + 0.45666666
    if tokens > 4300:
        return at_200
    at_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (at_200 - at_10) / 190
    return slope * steps + at_200 - 200 * slope


def latent_size(request: Request, factor: int, multiple: int, name: str) -> tuple[int, int]:
    """Height and width of the latent. ValueError names a size that does not divide.

    factor: pixels a latent stands for on one side. multiple: what sizes must divide by.
    """
    for key, size in (("height", request.height), ("width", request.width)):
        if size % multiple or size < multiple:
            near = max(multiple, round(size / multiple) * multiple)
            raise ValueError(
                f"{name} makes sizes that divide by {multiple}, [rollout] {key} is {size}; "
                f"{near} is near"
            )
    return request.height // factor, request.width // factor


def packed(x: Tensor) -> Tensor:
    """(B, C, h, w) to tokens of 2 x 2 latents (B, hw / 4, 4 C), channel first, as FLUX.1."""
    b, c, h, w = x.shape
    x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(b, h * w // 4, 4 * c)


def unpacked(tokens: Tensor, h: int, w: int) -> Tensor:
    """The inverse of `packed`: (B, hw / 4, 4 C) to (B, C, h, w)."""
    b, _, c = tokens.shape
    x = tokens.view(b, h // 2, w // 2, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return x.reshape(b, c // 4, h, w)
