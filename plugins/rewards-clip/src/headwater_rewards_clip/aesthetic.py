"""LAION's aesthetic predictor: five linear layers on normalised CLIP L/14 image features.

There is no activation between the layers and the dropout is off, so they are one affine map.
Source: improved-aesthetic-predictor, sac+logos+ava1-l14-linearMSE.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

LAYERS = (0, 2, 4, 6, 7)
"""Places of the linear layers; dropout stands between them."""


@attrs.frozen(eq=False)
class AestheticHead:
    """score = weight . e + bias for a feature e of length 1."""

    weight: Tensor
    """(D,)"""
    bias: Tensor
    """()"""


def aesthetic_score(features: Tensor, head: AestheticHead) -> Tensor:
    """(B,) scores of image features (B, D), which are normalised here."""
    unit = F.normalize(features, dim=-1)
    return unit @ head.weight.to(unit) + head.bias.to(unit)


def affine_head(state: Mapping[str, Tensor]) -> AestheticHead:
    """Multiply the layers `layers.N.weight` and `layers.N.bias` out, in float64.

    ValueError where one is missing, unknown, or does not fit the one before it.
    """
    wanted = [f"layers.{n}.{kind}" for n in LAYERS for kind in ("weight", "bias")]
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        raise ValueError(
            f"expected the five linear layers layers.{{0,2,4,6,7}} of an aesthetic predictor; "
            f"missing: {', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}"
        )
    layers = [(state[f"layers.{n}.weight"], state[f"layers.{n}.bias"]) for n in LAYERS]
    width = layers[0][0].shape[-1]
    for n, (weight, bias) in zip(LAYERS, layers, strict=True):
        if weight.ndim != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
            raise ValueError(
                f"layers.{n}: expected a weight of {width} columns and its bias, got "
                f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        width = weight.shape[0]
    if width != 1:
        raise ValueError(f"layers.{LAYERS[-1]}: expected one output, got {width}")
    total, offset = layers[0][0].double(), layers[0][1].double()
    for weight, bias in layers[1:]:
        total, offset = weight.double() @ total, weight.double() @ offset + bias.double()
    return AestheticHead(total[0], offset[0])


def in_dtype(head: AestheticHead, dtype: torch.dtype, device: str) -> AestheticHead:
    """The head on a device, at least float32."""
    dtype = dtype if dtype == torch.float64 else torch.float32
    return AestheticHead(head.weight.to(device, dtype), head.bias.to(device, dtype))
