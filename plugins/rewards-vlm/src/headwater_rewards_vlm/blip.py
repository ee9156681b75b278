"""ImageReward's network in transformers' BLIP classes, from ImageReward's own weight names.

(MLP of the text's first token, which attended to the image) arXiv 2304.05977. The settings that no
tensor's shape tells (heads, epsilons, that the text encoder is built as a decoder and not run as
one) are stated here; each of them loads silently wrong at transformers' default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from headwater.validators import at_least
from headwater_rewards_vlm.weights import check_same

MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Of the MLP's output over ImageReward's data: reward = (output - MEAN) / STD."""
MLP_WIDTHS = (1024, 128, 64, 16, 1)
MLP_PLACES = (0, 2, 4, 6, 7)
"""Places of the linear layers; dropout stands at 1, 3 and 5, and no activation anywhere."""

_RULES = (
    ("blip.visual_encoder.cls_token", "vision.embeddings.class_embedding"),
    ("blip.visual_encoder.pos_embed", "vision.embeddings.position_embedding"),
    ("blip.visual_encoder.patch_embed.proj.", "vision.embeddings.patch_embedding."),
    ("blip.visual_encoder.blocks.N.norm1.", "vision.encoder.layers.N.layer_norm1."),
    ("blip.visual_encoder.blocks.N.norm2.", "vision.encoder.layers.N.layer_norm2."),
    ("blip.visual_encoder.blocks.N.attn.qkv.", "vision.encoder.layers.N.self_attn.qkv."),
    ("blip.visual_encoder.blocks.N.attn.proj.", "vision.encoder.layers.N.self_attn.projection."),
    ("blip.visual_encoder.blocks.N.mlp.", "vision.encoder.layers.N.mlp."),
    ("blip.visual_encoder.norm.", "vision.post_layernorm."),
    ("blip.text_encoder.", "text."),
    ("mlp.layers.", "mlp."),
)
"""Beginnings of names, ImageReward's and this network's; N is a number."""
_UNUSED = re.compile(r"^blip\.(vision_proj|text_proj)\.|\.position_ids$")


@attrs.frozen(eq=False)
class Sizes:
    """Sizes of an ImageReward network."""

    image_size: int = attrs.field(default=224, validator=at_least(1))
    """Pixels on a side."""
    patch: int = attrs.field(default=16, validator=at_least(1))
    """Pixels on a side of a patch."""
    vision_width: int = attrs.field(default=1024, validator=at_least(1))
    """Width of the image encoder; its MLP is four times as wide."""
    vision_layers: int = attrs.field(default=24, validator=at_least(1))
    """Blocks of the image encoder."""
    vision_heads: int = attrs.field(default=16, validator=at_least(1))
    """Attention heads of the image encoder."""
    text_width: int = attrs.field(default=768, validator=at_least(1))
    """Width of the text encoder."""
    text_layers: int = attrs.field(default=12, validator=at_least(1))
    """Blocks of the text encoder."""
    text_heads: int = attrs.field(default=12, validator=at_least(1))
    """Attention heads of the text encoder."""
    text_mlp: int = attrs.field(default=3072, validator=at_least(1))
    """Width of the text encoder's MLP."""
    positions: int = attrs.field(default=512, validator=at_least(35))
    """Rows of the position table."""
    vocabulary: int = attrs.field(default=30524, validator=at_least(5))
    """Rows of the token table."""

    def __attrs_post_init__(self) -> None:
        """ValueError where a width does not divide."""
        for what, whole, part in (
            ("vision_width", self.vision_width, self.vision_heads),
            ("text_width", self.text_width, self.text_heads),
            ("image_size", self.image_size, self.patch),
        ):
            if whole % part:
                raise ValueError(f"{what}: expected a multiple of {part}, got {whole}")


class ImageRewardNetwork(nn.Module):
    """Image encoder, text encoder with cross attention, and the MLP on its first token."""

    def __init__(self, sizes: Sizes) -> None:
        from transformers import BlipTextModel, BlipVisionModel

        super().__init__()
        self.vision = BlipVisionModel(_vision_config(sizes))
        self.text = BlipTextModel(_text_config(sizes), add_pooling_layer=False)
        inputs = (sizes.text_width, *MLP_WIDTHS[:-1])
        layers: list[nn.Module] = [nn.Identity() for _ in range(MLP_PLACES[-1] + 1)]
        for place, given, made in zip(MLP_PLACES, inputs, MLP_WIDTHS, strict=True):
            layers[place] = nn.Linear(given, made)
        self.mlp = nn.Sequential(*layers)

    def features(self, pixels: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        """(B, D) of the first token. pixels (B, 3, S, S); ids and mask (B, L), None for all."""
        image = self.vision(pixel_values=pixels).last_hidden_state  # (B, patches + 1, D')
        hidden: Tensor = self.text(
            input_ids=ids, attention_mask=mask, encoder_hidden_states=image
        ).last_hidden_state
        return hidden[:, 0]

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        """(B,) outputs of the MLP, not yet normalised."""
        out: Tensor = self.mlp(self.features(pixels, ids, mask))
        return out[:, 0]


def _vision_config(sizes: Sizes) -> Any:
    from transformers import BlipVisionConfig

    return BlipVisionConfig(
        hidden_size=sizes.vision_width,
        intermediate_size=4 * sizes.vision_width,
        num_hidden_layers=sizes.vision_layers,
        num_attention_heads=sizes.vision_heads,
        image_size=sizes.image_size,
        patch_size=sizes.patch,
        hidden_act="gelu",
        layer_norm_eps=1e-6,
    )


def _text_config(sizes: Sizes) -> Any:
    """`is_decoder` builds the cross attention; the forward is not causal all the same."""
    from transformers import BlipTextConfig

    return BlipTextConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.text_width,
        encoder_hidden_size=sizes.vision_width,
        intermediate_size=sizes.text_mlp,
        num_hidden_layers=sizes.text_layers,
        num_attention_heads=sizes.text_heads,
        max_position_embeddings=sizes.positions,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        is_decoder=True,
        bos_token_id=None,
        sep_token_id=None,
    )


def renamed(name: str) -> str:
    """ImageReward's name of a weight to this network's; empty for one that is not used.

    ValueError for a name that is none of ImageReward's.
    """
    if _UNUSED.search(name):
        return ""
    for theirs, ours in _RULES:
        if found := _replaced(name, theirs, ours):
            return found
    raise ValueError(f"{name!r} is no weight of ImageReward")


def original(name: str) -> str:
    """This network's name of a weight to ImageReward's."""
    for theirs, ours in _RULES:
        if found := _replaced(name, ours, theirs):
            return found
    return name


def _replaced(name: str, start: str, target: str) -> str:
    """`name` with its beginning replaced; empty where it begins otherwise."""
    pattern = re.escape(start).replace("N", r"(\d+)")
    match = re.match(pattern, name)
    if not match:
        return ""
    number = match.group(1) if match.groups() else ""
    return target.replace("N", number) + name[match.end() :]


def blank_network(sizes: Sizes) -> ImageRewardNetwork:
    """Shapes without data."""
    with torch.device("meta"):
        return ImageRewardNetwork(sizes).eval().requires_grad_(requires_grad=False)


def network_from_state(
    state: Mapping[str, Tensor],
    sizes: Sizes,
    dtype: torch.dtype = torch.float32,
    source: str = "the checkpoint",
) -> ImageRewardNetwork:
    """A frozen network of weights under ImageReward's names, every one accounted for.

    ValueError names what is missing, unknown or of another shape.
    """
    network = blank_network(sizes)
    converted = {}
    for name, value in state.items():
        try:
            target = renamed(name)
        except ValueError:
            target = name  # reported below, as not known
        if target:
            converted[target] = value.to(dtype)
    check_same(converted, network.state_dict(), original, source)
    network.load_state_dict(converted, strict=True, assign=True)
    for module in network.modules():  # buffers without weights are not in a checkpoint
        for key, value in list(module.named_buffers(recurse=False)):
            if value.is_meta:
                if key != "position_ids":
                    raise AssertionError(f"an unknown buffer {key!r}")
                module.position_ids = torch.arange(value.shape[-1]).expand(1, -1)
    return network.eval().requires_grad_(requires_grad=False)
