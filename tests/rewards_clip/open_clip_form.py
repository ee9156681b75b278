"""CLIP's forward written out from open_clip's own weights and names, without transformers.

The independent form that the conversion is compared with (Radford et al., arXiv 2103.00020).
"""

import torch
import torch.nn.functional as F


def encode_image(state, pixels, heads, activation):
    """Projected features (B, D), not normalised."""
    stride = state["visual.conv1.weight"].shape[-1]
    x = F.conv2d(pixels, state["visual.conv1.weight"], stride=stride).flatten(2).transpose(1, 2)
    start = state["visual.class_embedding"].expand(len(x), 1, -1)
    x = torch.cat([start, x], dim=1) + state["visual.positional_embedding"]
    x = _norm(state, "visual.ln_pre", x)
    x = _blocks(state, "visual.transformer", x, heads, activation, mask=None)
    return _norm(state, "visual.ln_post", x[:, 0]) @ state["visual.proj"]


def encode_text(state, ids, heads, activation):
    """Projected features (B, D): read at the largest token number, the end of the text."""
    x = state["token_embedding.weight"][ids] + state["positional_embedding"][: ids.shape[1]]
    mask = torch.full((ids.shape[1],) * 2, float("-inf"), dtype=x.dtype).triu(1)
    x = _norm(state, "ln_final", _blocks(state, "transformer", x, heads, activation, mask))
    return x[torch.arange(len(x)), ids.argmax(dim=-1)] @ state["text_projection"]


def _blocks(state, tower, x, heads, activation, mask):
    count = 1 + max(
        int(n.split(".resblocks.")[1].split(".")[0]) for n in state if n.startswith(tower)
    )
    for index in range(count):
        name = f"{tower}.resblocks.{index}"
        x = x + _attention(state, f"{name}.attn", _norm(state, f"{name}.ln_1", x), heads, mask)
        hidden = _linear(state, f"{name}.mlp.c_fc", _norm(state, f"{name}.ln_2", x))
        quick = activation == "quick_gelu"
        hidden = hidden * torch.sigmoid(1.702 * hidden) if quick else F.gelu(hidden)
        x = x + _linear(state, f"{name}.mlp.c_proj", hidden)
    return x


def _attention(state, name, x, heads, mask):
    B, T, width = x.shape
    both = x @ state[f"{name}.in_proj_weight"].T + state[f"{name}.in_proj_bias"]
    q, k, v = (t.view(B, T, heads, -1).transpose(1, 2) for t in both.chunk(3, dim=-1))
    weights = q @ k.transpose(-1, -2) * (width // heads) ** -0.5
    weights = (weights if mask is None else weights + mask).softmax(dim=-1)
    return _linear(state, f"{name}.out_proj", (weights @ v).transpose(1, 2).reshape(B, T, width))


def _linear(state, name, x):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _norm(state, name, x):
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)
