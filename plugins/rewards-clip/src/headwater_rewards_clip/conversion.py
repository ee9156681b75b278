"""CLIP weights under open_clip's names, strictly, to those of transformers' CLIPModel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from headwater_rewards_clip.architecture import Architecture, open_clip_shapes

_WHOLE = {
    "logit_scale": "logit_scale",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
}
_TRANSPOSED = {
    "text_projection": "text_projection.weight",
    "visual.proj": "visual_projection.weight",
}
_NORMS = {
    "ln_final": "text_model.final_layer_norm",
    "visual.ln_pre": "vision_model.pre_layrnorm",  # transformers' own spelling
    "visual.ln_post": "vision_model.post_layernorm",
}
_IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
# Causal masks and the sizes that archives carry beside the weights.
_UNUSED = ("attn_mask", "input_resolution", "context_length", "vocab_size")


def to_transformers(state: Mapping[str, Tensor], sizes: Architecture) -> dict[str, Tensor]:
    """Rename, transpose and split. ValueError names what is missing, unknown or misshapen.

    state: open_clip's names, a leading `module.` allowed.
    """
    state = {name.removeprefix("module."): value for name, value in state.items()}
    for name in _UNUSED:
        state.pop(name, None)
    fault = differences(
        {name: tuple(value.shape) for name, value in state.items()}, open_clip_shapes(sizes)
    )
    if fault:
        raise ValueError(fault)
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        out |= _renamed(name, value)
    return out


def _renamed(name: str, value: Tensor) -> dict[str, Tensor]:
    """One weight: one name, or three where attention's are kept in one."""
    if name in _WHOLE:
        return {_WHOLE[name]: value}
    if name in _TRANSPOSED:
        return {_TRANSPOSED[name]: value.T.contiguous()}
    module, _, kind = name.rpartition(".")
    if module in _NORMS:
        return {f"{_NORMS[module]}.{kind}": value}
    tower = "vision_model" if name.startswith("visual.") else "text_model"
    index, _, rest = name.partition("resblocks.")[2].partition(".")
    layer = f"{tower}.encoder.layers.{index}"
    if rest.startswith("attn.in_proj_"):
        kind = rest.removeprefix("attn.in_proj_")
        parts = zip("qkv", value.chunk(3, dim=0), strict=True)
        return {f"{layer}.self_attn.{p}_proj.{kind}": part.contiguous() for p, part in parts}
    inner, _, kind = rest.rpartition(".")
    return {f"{layer}.{_IN_BLOCK[inner]}.{kind}": value}


def differences(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> str:
    """How two sets of weights differ, in one sentence; empty where they do not."""
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    misshapen = [
        f"{name} {found[name]}, expected {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    parts = [
        f"{len(names)} of {len(wanted)} weights {what} ({_few(names)})"
        for names, what in ((missing, "are missing"), (misshapen, "have another shape"))
        if names
    ]
    if unknown:
        parts.append(f"{len(unknown)} are not known ({_few(unknown)})")
    return "; ".join(parts)


def _few(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
