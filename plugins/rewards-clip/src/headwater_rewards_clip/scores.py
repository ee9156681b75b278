"""CLIP features, their cosine, and what the field's trainers call the score.

The base value is always the raw cosine; any factor is declared by name.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headwater.types import at_least_float32

Scale = Literal["cosine", "percent", "logit", "logit/26", "logit/100", "(logit-18)/8"]
"""cosine: HPSv2's `score`, DanceGRPO, FlowBP's training. percent: HPSv2's tables. With
s = exp(logit_scale), logit: s cos, PickScore's own. logit/26: Flow-GRPO, FlowBP and DiffusionNFT
for PickScore. logit/100: FlowBP and DiffusionNFT for CLIPScore. (logit-18)/8: MixGRPO."""


def image_features(clip: Any, pixels: Tensor) -> Tensor:
    """Projected features (B, D) of pixels (B, 3, S, S), not normalised, at least float32."""
    dtype = next(clip.visual_projection.parameters()).dtype
    return _projected(clip.get_image_features(pixel_values=pixels.to(dtype)))


def text_features(clip: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Projected features (B, D) of tokens (B, T), not normalised, at least float32.

    The feature is read at the end of the text, so that padding after it changes nothing.
    """
    return _projected(clip.get_text_features(input_ids=ids, attention_mask=mask))


def _projected(output: Any) -> Tensor:
    """transformers 5 wraps the projected feature, 4 gives it bare."""
    return at_least_float32(output if isinstance(output, Tensor) else output.pooler_output)


def cosine(images: Tensor, texts: Tensor) -> Tensor:
    """(B,) cosines of feature pairs (B, D)."""
    return (F.normalize(images, dim=-1) * F.normalize(texts, dim=-1)).sum(dim=-1)


def scaled(value: Tensor, log_scale: Tensor, scale: Scale) -> Tensor:
    """A cosine as a trainer's score.

    log_scale: the model's `logit_scale`, whose exponential is s.
    """
    if scale == "cosine":
        return value
    if scale == "percent":
        return 100 * value
    logit = at_least_float32(log_scale.detach()).to(value).exp() * value
    if scale == "logit":
        return logit
    if scale == "logit/26":
        return logit / 26
    return logit / 100 if scale == "logit/100" else (logit - 18) / 8


class StatedMargin:
    """A reward's hinge margin: its cosine's, in the scale the reward is set to (s = 100)."""

    def __init__(self, cosine: float) -> None:
        self.cosine = cosine

    def __get__(self, reward: Any, owner: type) -> float:
        """The cosine's own on the class, the scaled one on a reward."""
        if reward is None:
            return self.cosine
        value = torch.tensor(self.cosine, dtype=torch.float64)
        log_scale = torch.tensor(math.log(100.0), dtype=torch.float64)
        return float(scaled(value, log_scale, reward.scale))
