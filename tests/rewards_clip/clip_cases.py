"""Recorded cases, the pictures they were made of, and small CLIP checkpoints to make."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from headwater_rewards_clip.architecture import Architecture, open_clip_shapes

ORACLES = Path(__file__).parent / "oracles"
TINY = {
    "image_size": 32,
    "patch": 8,
    "vision_width": 32,
    "vision_layers": 2,
    "vision_heads": 2,
    "text_width": 48,
    "text_layers": 2,
    "text_heads": 3,
    "features": 16,
    "vocabulary": 125,
}


def tiny(**changes):
    """Sizes of the recorded models."""
    return Architecture(**{**TINY, "activation": "gelu", **changes})


def recorded(name):
    return load_file(ORACLES / f"{name}.safetensors")


def manifest(name):
    return json.loads((ORACLES / f"{name}.json").read_text())


def picture(seed, height, width):
    """The recorded cases' pictures, (H, W, 3) levels: ramps, waves, noise and hard edges."""
    source = np.random.RandomState(seed)

    def draw(low, high, size=None):
        return source.randint(low, high + 1, size=size, dtype=np.int64)

    y, x = np.arange(height)[:, None], np.arange(width)[None, :]
    out = np.empty((height, width, 3), dtype=np.int64)
    for channel in range(3):
        p, q = int(draw(1, 9)), int(draw(1, 9))
        across, down = 255 * x // max(width - 1, 1), 255 * y // max(height - 1, 1)
        ramp = (p * across + q * down) // (p + q)
        if int(draw(0, 1)):
            ramp = 255 - ramp
        a, b, half = int(draw(1, 7)), int(draw(1, 7)), int(draw(9, 60))
        wave = np.abs((a * x + b * y) % (2 * half) - half) * 255 // half
        out[..., channel] = (3 * ramp + wave) // 4
    out = out + draw(-20, 20, size=(height, width, 3))
    for _ in range(4):
        top, left = int(draw(0, height - 1)), int(draw(0, width - 1))
        h, w = int(draw(1, max(height // 3, 1))), int(draw(1, max(width // 3, 1)))
        out[top : top + h, left : left + w] = draw(0, 1, size=3) * 255
        row, column = int(draw(0, height - 1)), int(draw(0, width - 1))
        radius = int(draw(1, max(min(height, width) // 5, 1)))
        out[(y - row) ** 2 + (x - column) ** 2 <= radius**2] = draw(0, 255, size=3)
    return np.clip(out, 0, 255).astype(np.uint8)


def as_images(levels):
    """Levels (H, W, 3) to images (1, 3, H, W) in [0, 1]."""
    return torch.from_numpy(levels.copy()).permute(2, 0, 1)[None].float() / 255


def case_image(name):
    """A picture of the recorded cases as images (1, 3, H, W)."""
    (entry,) = (e for e in manifest("images")["images"] if e["name"] == name)
    return as_images(picture(entry["seed"], entry["height"], entry["width"]))


def random_checkpoint(sizes, seed=0):
    """Weights under open_clip's names, large enough that every part of the network matters."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in open_clip_shapes(sizes).items():
        value = torch.randn(shape, generator=generator)
        norm = ".ln_" in name or name.startswith("ln_")
        if norm and name.endswith(".weight"):
            state[name] = 1 + 0.2 * value
        else:
            state[name] = value * (0.3 if len(shape) < 2 else shape[-1] ** -0.5)
    state["logit_scale"] = torch.tensor(np.log(100.0), dtype=torch.float32)
    return state


def save_tokenizer(folder):
    """A CLIP tokenizer of single letters, its end the last token; gives its size."""
    import tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(c + "</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    made = CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])
    made.save_pretrained(folder)
    return len(words)
