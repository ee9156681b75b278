"""The sixteen pictures of the mixture, and what a prompt says of them."""

from __future__ import annotations

import re

import torch
from torch import Tensor

SHAPES = {
    "ring": "........ ..####.. .##..##. .#....#. .#....#. .##..##. ..####.. ........",
    "cross": "...##... ...##... ...##... ######## ######## ...##... ...##... ...##...",
    "bar": "........ ........ ######## ######## ######## ######## ........ ........",
    "post": "..####.. ..####.. ..####.. ..####.. ..####.. ..####.. ..####.. ..####..",
}
"""8 rows of 8 cells, from the top; a dot is background."""
COLOURS = {"red": (1, -1, -1), "green": (-1, 1, -1), "blue": (-1, -1, 1), "yellow": (1, 1, -1)}
"""Channels in [-1, 1]."""
COMPONENTS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)
"""Component k of the mixture is the picture of COMPONENTS[k]."""
SIZE = 8
BACKGROUND = -0.5
_EMPTY = {"a", "an", "the", "or", "picture", "of"}


def means() -> Tensor:
    """(16, 3, 8, 8) float64, the middle of each component, in [-1, 1]."""
    return torch.stack([_picture(colour, shape) for colour, shape in COMPONENTS])


def _picture(colour: str, shape: str) -> Tensor:
    mask = torch.tensor([[cell == "#" for cell in row] for row in SHAPES[shape].split()])
    inside = torch.tensor(COLOURS[colour], dtype=torch.float64)[:, None, None]
    return torch.where(mask, inside, torch.full_like(inside, BACKGROUND))


def weights_of(text: str) -> list[float]:
    """The probability of each component under a prompt: equal among those it leaves open.

    "a red ring" leaves one, "red" four, "red or blue ring" two, "" all sixteen. ValueError names a
    word that it does not know.
    """
    colours, shapes = [], []
    for word in re.findall(r"[^\s,.]+", text.lower()):
        if word in COLOURS:
            colours.append(word)
        elif word in SHAPES:
            shapes.append(word)
        elif word not in _EMPTY:
            known = ", ".join([*COLOURS, *SHAPES, *sorted(_EMPTY)])
            raise ValueError(
                f"mixture does not know the word {word!r} of {text!r}; it knows {known}"
            )
    meant = [
        (not colours or colour in colours) and (not shapes or shape in shapes)
        for colour, shape in COMPONENTS
    ]
    return [float(yes) / sum(meant) for yes in meant]
