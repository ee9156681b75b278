"""Sample grids as PNG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

CELL = 128
"""Least side of a shown sample, in pixels; small samples are enlarged without smoothing."""
CAPTION = 40
GAP = 8


def to_pixels(image: Tensor) -> Image.Image:
    """(3, H, W) in [0, 1] to a picture."""
    array = image.detach().float().clamp(0, 1).permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(np.round(array * 255).astype(np.uint8))


def from_file(path: Path) -> Tensor:
    """(3, H, W) float32 in [0, 1] of a picture."""
    with Image.open(path) as picture:
        array = np.array(picture.convert("RGB"))
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255


def save_grid(path: Path, images: Tensor, captions: Sequence[str], columns: int = 4) -> None:
    """One picture of B samples, each above its caption. images: (B, 3, H, W)."""
    _save(path, [[image] for image in images], captions, columns, [])


def save_pairs(
    path: Path,
    left: Tensor,
    right: Tensor,
    captions: Sequence[str],
    columns: int = 4,
    headings: tuple[str, str] = ("before", "after"),
) -> None:
    """Pairs of samples from the same noise, side by side. Each (B, 3, H, W)."""
    pairs = [[one, other] for one, other in zip(left, right, strict=True)]
    _save(path, pairs, captions, columns, headings)


def _save(
    path: Path,
    cells: Sequence[Sequence[Tensor]],
    captions: Sequence[str],
    columns: int,
    headings: Sequence[str],
) -> None:
    """Write the grid; `headings` are drawn above each column's samples."""
    scale = max(1, -(-CELL // cells[0][0].shape[-1]))
    height, width = (side * scale for side in cells[0][0].shape[-2:])
    each = (width + 2) * len(cells[0]) + GAP
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    top = GAP + (16 if headings else 0)
    size = (each * columns + GAP, (height + CAPTION + GAP) * rows + top)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for i, (cell, caption) in enumerate(zip(cells, captions, strict=True)):
        x = GAP + (i % columns) * each
        y = top + (i // columns) * (height + CAPTION + GAP)
        for j, image in enumerate(cell):
            picture = to_pixels(image).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(picture, (x + j * (width + 2), y))
            if headings and i < columns:
                pen.text((x + j * (width + 2), 4), headings[j], fill="black", font=font)
        lines = textwrap.wrap(caption, max(8, (each - GAP) // 6))[:3]
        pen.text((x, y + height + 2), "\n".join(lines), fill="#333333", font=font, spacing=1)
    sheet.save(path)
