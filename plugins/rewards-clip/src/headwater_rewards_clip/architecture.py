"""What a CLIP checkpoint must hold: its sizes, and the name and shape of every tensor.

Head counts and the activation are in no tensor's shape, so they are declared, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from headwater.validators import at_least


@attrs.frozen(eq=False)
class Architecture:
    """Sizes of a CLIP model, as open_clip's configurations state them."""

    image_size: int = attrs.field(validator=at_least(1))
    """Pixels on a side."""
    patch: int = attrs.field(validator=at_least(1))
    """Pixels on a side of a patch."""
    vision_width: int = attrs.field(validator=at_least(1))
    """Width of the image tower."""
    vision_layers: int = attrs.field(validator=at_least(1))
    """Blocks of the image tower."""
    vision_heads: int = attrs.field(validator=at_least(1))
    """Attention heads of the image tower."""
    text_width: int = attrs.field(validator=at_least(1))
    """Width of the text tower."""
    text_layers: int = attrs.field(validator=at_least(1))
    """Blocks of the text tower."""
    text_heads: int = attrs.field(validator=at_least(1))
    """Attention heads of the text tower."""
    features: int = attrs.field(validator=at_least(1))
    """Width of the features that are compared."""
    activation: Literal["gelu", "quick_gelu"]
    """`gelu` (exact) or OpenAI's `quick_gelu`."""
    vocabulary: int = attrs.field(default=49408, validator=at_least(3))
    """Rows of the token table; the last is the end of a text."""
    context: int = attrs.field(default=77, validator=at_least(3))
    """Tokens of a text, its start and end among them."""

    def __attrs_post_init__(self) -> None:
        """ValueError where a width does not divide."""
        for what, whole, part in (
            ("vision_width", self.vision_width, self.vision_heads),
            ("text_width", self.text_width, self.text_heads),
            ("image_size", self.image_size, self.patch),
        ):
            if whole % part:
                raise ValueError(f"{what}: expected a multiple of {part}, got {whole}")


VIT_H_14 = Architecture(
    image_size=224,
    patch=14,
    vision_width=1280,
    vision_layers=32,
    vision_heads=16,
    text_width=1024,
    text_layers=24,
    text_heads=16,
    features=1024,
    activation="gelu",
)
"""HPSv2, HPSv2.1 and PickScore; laion2B-s32B-b79K."""

VIT_L_14 = Architecture(
    image_size=224,
    patch=14,
    vision_width=1024,
    vision_layers=24,
    vision_heads=16,
    text_width=768,
    text_layers=12,
    text_heads=12,
    features=768,
    activation="quick_gelu",
)
"""OpenAI's ViT-L/14: CLIPScore and the aesthetic predictor."""


def open_clip_shapes(sizes: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight under open_clip's names (OpenAI's and HPSv2's too)."""
    vision, text = sizes.vision_width, sizes.text_width
    places = (sizes.image_size // sizes.patch) ** 2 + 1
    shapes: dict[str, tuple[int, ...]] = {
        "logit_scale": (),
        "token_embedding.weight": (sizes.vocabulary, text),
        "positional_embedding": (sizes.context, text),
        "text_projection": (text, sizes.features),
        "visual.class_embedding": (vision,),
        "visual.positional_embedding": (places, vision),
        "visual.conv1.weight": (vision, 3, sizes.patch, sizes.patch),
        "visual.proj": (vision, sizes.features),
        **_norm("ln_final", text),
        **_norm("visual.ln_pre", vision),
        **_norm("visual.ln_post", vision),
    }
    for index in range(sizes.vision_layers):
        shapes |= _block(f"visual.transformer.resblocks.{index}", vision)
    for index in range(sizes.text_layers):
        shapes |= _block(f"transformer.resblocks.{index}", text)
    return shapes


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _block(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """One residual block; its MLP is four times as wide."""
    return {
        **_norm(f"{name}.ln_1", width),
        **_norm(f"{name}.ln_2", width),
        f"{name}.attn.in_proj_weight": (3 * width, width),
        f"{name}.attn.in_proj_bias": (3 * width,),
        f"{name}.attn.out_proj.weight": (width, width),
        f"{name}.attn.out_proj.bias": (width,),
        f"{name}.mlp.c_fc.weight": (4 * width, width),
        f"{name}.mlp.c_fc.bias": (4 * width,),
        f"{name}.mlp.c_proj.weight": (width, 4 * width),
        f"{name}.mlp.c_proj.bias": (width,),
    }


def transformers_config(sizes: Architecture) -> Mapping[str, Any]:
    """Keyword arguments of transformers' CLIPConfig."""
    shared = {
        "projection_dim": sizes.features,
        "hidden_act": sizes.activation,
        "layer_norm_eps": 1e-5,
    }
    return {
        "projection_dim": sizes.features,
        "vision_config": {
            **shared,
            "hidden_size": sizes.vision_width,
            "intermediate_size": 4 * sizes.vision_width,
            "num_hidden_layers": sizes.vision_layers,
            "num_attention_heads": sizes.vision_heads,
            "image_size": sizes.image_size,
            "patch_size": sizes.patch,
        },
        "text_config": {
            **shared,
            "hidden_size": sizes.text_width,
            "intermediate_size": 4 * sizes.text_width,
            "num_hidden_layers": sizes.text_layers,
            "num_attention_heads": sizes.text_heads,
            "max_position_embeddings": sizes.context,
            "vocab_size": sizes.vocabulary,
            "bos_token_id": sizes.vocabulary - 2,
            "eos_token_id": sizes.vocabulary - 1,
            "pad_token_id": sizes.vocabulary - 1,
        },
    }
