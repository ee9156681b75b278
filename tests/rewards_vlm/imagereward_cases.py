"""Recorded cases of the original ImageReward: tiny weights, images, a vocabulary of 98 words."""

import importlib.util
import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from headwater.protocols import LoadContext
from headwater_rewards_vlm.blip import Sizes
from headwater_rewards_vlm.imagereward import ImageReward

FOLDER = Path(__file__).parent / "oracles"
RECORD = json.loads((FOLDER / "imagereward.json").read_text())
CASES = load_file(FOLDER / "imagereward_cases.safetensors")
TEXTS = [token["text"] for token in RECORD["tokens"]]

# Words of bert-base-uncased at the recorded ids, in their order.
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "!",
    "%",
    "&",
    "'",
    ",",
    "-",
    ".",
    "/",
    ";",
    "<",
    ">",
    "_",
    "a",
    "b",
    "d",
    "f",
    "g",
    "o",
    "s",
    "|",
    "ε",
    "—",
    "’",
    "“",
    "”",
    "と",
    "犬",
    "ﬁ",
    "the",
    "of",
    "and",
    "in",
    "on",
    "with",
    "it",
    "at",
    "an",
    "##a",
    "##r",
    "##t",
    "end",
    "night",
    "100",
    "##9",
    "ten",
    "library",
    "nine",
    "ancient",
    "scene",
    "oil",
    "sign",
    "text",
    "highly",
    "fish",
    "dog",
    "##sh",
    "painting",
    "twelve",
    "cat",
    "eleven",
    "zero",
    "photo",
    "detailed",
    "wrist",
    "3d",
    "cafe",
    "floating",
    "lt",
    "au",
    "nasa",
    "glowing",
    "##ex",
    "hd",
    "chips",
    "gt",
    "##α",
    "##strom",
    "naive",
    "##oft",
    "glove",
    "neon",
    "ang",
    "render",
    "204",
    "astronaut",
    "lai",
    "owls",
    "amp",
    "caf",
    "lanterns",
    "##©",
    "##δ",
    "##λ",
]

SIZES = Sizes(
    image_size=32,
    patch=8,
    vision_width=32,
    vision_layers=3,
    vision_heads=2,
    text_width=48,
    text_layers=2,
    text_heads=3,
    text_mlp=96,
    positions=40,
    vocabulary=98,
)


@cache
def images():
    """name: (1, 3, H, W) float32 in [0, 1]."""
    spec = importlib.util.spec_from_file_location("make_images", FOLDER / "make_images.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = {}
    for entry in json.loads((FOLDER / "images.json").read_text())["images"]:
        array = module.image(entry["seed"], entry["height"], entry["width"])
        out[entry["name"]] = torch.from_numpy(array).permute(2, 0, 1)[None].float() / 255
    return out


def image(name, dtype=torch.float32):
    return images()[name].to(dtype)


def state():
    """The tiny weights under ImageReward's own names."""
    return load_file(FOLDER / "imagereward.safetensors")


def write(folder, weights=None):
    """Checkpoint and vocabulary as files; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state() if weights is None else weights, folder / "ImageReward.safetensors")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder / "ImageReward.safetensors", folder / "vocab.txt"


def reward(folder, **settings):
    """A loaded reward of the recorded weights."""
    model, vocabulary = write(folder)
    made = ImageReward(model=str(model), vocabulary=str(vocabulary), architecture=SIZES, **settings)
    made.load(LoadContext("cpu"))
    return made
