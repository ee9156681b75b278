"""Floating point operations of one velocity, counted on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from headwater.live_bytes import fused_attention
from headwater.types import Rollout


def of_velocity(backbone: Any, rollout: Rollout) -> tuple[int, int]:
    """FLOPs of a sample's velocity forward, guidance included, and of its backward.

    A multiplication and an addition count two. Matrix products, convolutions and attention are
    counted, elementwise work is not; what checkpointing recomputes is part of the backward.
    """
    x = rollout.state(0)
    sigma = torch.empty(len(x), device="meta")
    with fused_attention():
        with _counter() as forward:
            v = backbone.velocity(x, sigma, rollout.batch.conditioning)
        with _counter() as backward:
            torch.autograd.backward(v, torch.empty_like(v))
    return forward.get_total_flops() // len(x), backward.get_total_flops() // len(x)


def _counter() -> FlopCounterMode:
    """torch's counter, taught the fused attention that the meta device takes here."""
    aten = torch.ops.aten
    known = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    }
    return FlopCounterMode(display=False, custom_mapping=known)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))
