"""What a drawing holds, as targets for the image tower while it is trained.

Ranking alone teaches the tower slowly what a colour or a shape is. A linear head, thrown away
after training, reads the attributes of every drawing off the image vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from headwater_tiny.draw import Layout
from headwater_tiny.grammar import BACKGROUNDS, COLORS, SHAPES, SIZES

_COLUMNS = {8: 0, 12: 1, 16: 1, 20: 1, 24: 2}
_BACKGROUNDS, _COUNTS = len(BACKGROUNDS), 5
_MANY = 24 + 6 + 16 + 9 * 8 + 9 * 3
OUTPUTS = _BACKGROUNDS + _COUNTS + _MANY


def targets(layouts: Sequence[Layout]) -> tuple[Tensor, Tensor, Tensor]:
    """Background (B,), count (B,) and the attributes that occur (B, 145)."""
    backgrounds = [BACKGROUNDS.index(layout.background) for layout in layouts]
    counts = [len(layout.objects) for layout in layouts]
    many = torch.zeros(len(layouts), _MANY)
    for row, layout in zip(many, layouts, strict=True):
        for o in layout.objects:
            color, size = COLORS.index(o.color), SIZES.index(o.size)
            cell = 3 * _COLUMNS[o.y] + _COLUMNS[o.x]
            present = [30 + 2 * color + size, 46 + 8 * cell + color]
            if o.morph is None and o.stretch == 1.0:
                shape = SHAPES.index(o.shape)
                present += [3 * color + shape, 24 + 2 * shape + size, 118 + 3 * cell + shape]
            row[present] = 1
    return torch.tensor(backgrounds), torch.tensor(counts), many


def attribute_loss(outputs: Tensor, layouts: Sequence[Layout]) -> Tensor:
    """Cross-entropy of background and count, binary cross-entropy of all else.

    outputs: (B, 160) of the linear head.
    """
    background, count, many = targets(layouts)
    first, second, rest = outputs.split([_BACKGROUNDS, _COUNTS, _MANY], dim=1)
    found = F.binary_cross_entropy_with_logits(rest, many, reduction="none").sum(dim=1).mean()
    return F.cross_entropy(first, background) + F.cross_entropy(second, count) + 0.3 * found
