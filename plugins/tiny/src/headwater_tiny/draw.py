"""Drawings of scenes: 32 x 32 images, centres on a 4-pixel grid, radii 4 and 7.

A `Layout` is a scene with nothing left free. Drawing is a pure function of layouts, so an image
and its flawed variants differ in what was changed and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from headwater_tiny.grammar import BACKGROUNDS, COLORS, SHAPES, SIZES, Draws, Scene, Thing

SIZE = 32
RADII = {"small": 4.0, "large": 7.0}
RGB = {
    "red": (0.90, 0.10, 0.10),
    "green": (0.10, 0.70, 0.15),
    "blue": (0.12, 0.22, 0.92),
    "yellow": (0.95, 0.92, 0.10),
    "orange": (0.96, 0.52, 0.05),
    "purple": (0.48, 0.12, 0.70),
    "cyan": (0.10, 0.85, 0.92),
    "magenta": (0.94, 0.22, 0.80),
    "white": (0.96, 0.96, 0.96),
    "black": (0.04, 0.04, 0.04),
    "grey": (0.50, 0.50, 0.50),
    "pink": (0.96, 0.74, 0.80),
    "beige": (0.90, 0.84, 0.66),
    "navy": (0.06, 0.08, 0.32),
    "olive": (0.42, 0.42, 0.10),
    "teal": (0.05, 0.40, 0.40),
    "maroon": (0.42, 0.06, 0.12),
    "lavender": (0.76, 0.72, 0.94),
}
"""Colours inside (0, 1), so that a sigmoid reaches them."""

Pick = Callable[[Sequence[Any]], Any]
_GRID = (8, 12, 16, 20, 24)
_MIDDLE = (12, 16, 20)
_QUADRANTS = ((8, 8), (24, 8), (8, 24), (24, 24))


@attrs.frozen
class Placed:
    """One object of a layout."""

    shape: str
    color: str
    size: str
    x: int
    """Centre, in pixels from the left."""
    y: int
    """Centre, in pixels from the top."""
    stretch: float = 1.0
    """Width over height; 1 but in a deformed drawing."""
    morph: str | None = None
    """A second shape that a deformed drawing is halfway to."""


@attrs.frozen
class Layout:
    """A scene with nothing left free."""

    background: str
    objects: tuple[Placed, ...]


def place(scene: Scene, generator: Generator) -> Layout:
    """Choose what the scene leaves free: colours, sizes, centres."""
    pick = Draws(generator).pick

    def fill(thing: Thing, center: tuple[int, int], size: str) -> Placed:
        color = thing.color or pick(COLORS)
        return Placed(thing.shape, color, thing.size or size, *center)

    if len(scene.things) == 2:
        pair = zip(scene.things, _pair(scene.relation, pick), strict=True)
        return Layout(scene.background, tuple(fill(t, c, pick(SIZES)) for t, c in pair))
    size = pick(SIZES)
    centers: tuple[tuple[int, int], ...]
    if scene.count == 1:
        centers = (_single(scene.position, pick),)
    elif scene.count == 2:
        centers = _pair(None, pick)
    else:
        missing = pick(range(4))
        centers = tuple(c for i, c in enumerate(_QUADRANTS) if i != missing)
    return Layout(scene.background, tuple(fill(scene.things[0], c, size) for c in centers))


def _single(position: str | None, pick: Pick) -> tuple[int, int]:
    """Centre of a lone object."""
    if position is None:
        return pick(_GRID), pick(_GRID)
    free = pick(_MIDDLE)
    return {
        "center": (16, 16),
        "left": (8, free),
        "right": (24, free),
        "top": (free, 8),
        "bottom": (free, 24),
    }[position]


def _pair(relation: str | None, pick: Pick) -> tuple[tuple[int, int], tuple[int, int]]:
    """Centres of two objects."""
    relation = relation or pick(("left of", "right of", "above", "below"))
    low, high = (8, pick(_MIDDLE)), (24, pick(_MIDDLE))
    if relation in ("right of", "below"):
        low, high = high, low
    if relation in ("above", "below"):
        low, high = low[::-1], high[::-1]
    return low, high


def draw(layouts: Sequence[Layout]) -> Tensor:
    """Draw layouts: (B, 3, 32, 32) float32 in [0, 1], edges anti-aliased."""
    counts = [len(layout.objects) for layout in layouts]
    first = [0, *accumulate(counts)]
    everything = [thing for layout in layouts for thing in layout.objects]
    images = torch.tensor([RGB[layout.background] for layout in layouts])[:, :, None, None]
    images = images.repeat(1, 1, SIZE, SIZE)
    if not everything:
        return images
    cover = coverage(torch.tensor([_row(thing) for thing in everything]))  # (objects, 32, 32)
    colors = torch.tensor([RGB[thing.color] for thing in everything])[:, :, None, None]
    for k in range(max(counts)):
        having = [b for b, count in enumerate(counts) if count > k]
        at = [first[b] + k for b in having]
        images[having] = torch.lerp(images[having], colors[at], cover[at, None])
    return images


def _row(thing: Placed) -> list[float]:
    weights = [float(shape == thing.shape) for shape in SHAPES]
    if thing.morph is not None:
        weights = [(w + float(s == thing.morph)) / 2 for w, s in zip(weights, SHAPES, strict=True)]
    radius, root = RADII[thing.size], thing.stretch**0.5
    return [*weights, float(thing.x), float(thing.y), radius * root, radius / root]


def coverage(table: Tensor) -> Tensor:
    """Fraction of each pixel that an object covers.

    table: (..., 7) weights of circle, square and triangle, centre x and y, half width and half
    height. Returns: (..., 32, 32) in [0, 1]; zeros where the half width is 0.
    """
    axis = torch.arange(SIZE, dtype=table.dtype) + 0.5
    cell = table[..., None, None]  # (..., 7, 1, 1)
    rx, ry = cell[..., 5, :, :], cell[..., 6, :, :]
    radius = (rx * ry).sqrt()
    x = (axis[None, :] - cell[..., 3, :, :]) / rx.clamp(min=1e-6) * radius
    y = (axis[:, None] - cell[..., 4, :, :]) / ry.clamp(min=1e-6) * radius
    circle = (x * x + y * y).sqrt() - radius
    square = torch.maximum(x.abs(), y.abs()) - radius
    # Apex up: half width grows from 0 at y = -r to r at y = r, slope 2.
    side = (2 * x.abs() - y - radius) / 5**0.5
    triangle = torch.maximum(side, y - radius)
    distance = (
        cell[..., 0, :, :] * circle + cell[..., 1, :, :] * square + cell[..., 2, :, :] * triangle
    )
    return (0.5 - distance).clamp(0, 1) * (rx > 0)


def sample_layouts(scenes: Sequence[Scene], generator: Generator) -> list[Layout]:
    """One layout for each scene."""
    return [place(scene, generator) for scene in scenes]


def palette(names: Sequence[str] = (*COLORS, *BACKGROUNDS)) -> Tensor:
    """RGB of colour names, (K, 3)."""
    return torch.tensor([RGB[name] for name in names])
