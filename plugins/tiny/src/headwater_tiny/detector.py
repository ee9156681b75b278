"""A rule-based judge: what is in an image, and is it what the prompt asks for.

The background is the median of the border. What differs from it falls into connected
components; each is compared with templates of all shapes, sizes and centres, and its colour with
the palette. No learning, no gradient: it is the held-out measure beside a learned reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import permutations

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from headwater_tiny.draw import RADII, SIZE, coverage, palette
from headwater_tiny.grammar import BACKGROUNDS, COLORS, SHAPES, SIZES, Scene, Thing, parse

ATTRIBUTES = ("background", "count", "shape", "color", "size", "position", "relation")
SLOTS = 5
"""Components looked at; more than the largest count."""
MIN_AREA = 6
"""Pixels; what is smaller is noise."""
FOREGROUND = 0.22
"""RGB distance from the background at which a pixel belongs to an object."""
BACKGROUND_TOLERANCE = 0.12
COLOR_TOLERANCE = 0.22
SHAPE_OVERLAP = 0.82
"""Smallest Tanimoto overlap with a template of the shape."""


@attrs.frozen
class Found:
    """One object seen in an image; None where it is unlike anything of the grammar."""

    shape: str | None
    color: str | None
    size: str | None
    x: int
    y: int


@attrs.frozen
class Seen:
    """What one image shows."""

    background: str | None
    objects: tuple[Found, ...]


@attrs.frozen(eq=False)
class Verdict:
    """Judgement of B images."""

    correct: Tensor
    """(B,) 1 where everything that was asked for is right, else 0."""
    fraction: Tensor
    """(B,) fraction of the single demands that are met."""
    attributes: dict[str, Tensor]
    """Attribute: (B,) 1 right, 0 wrong, nan not asked for."""
    categories: tuple[str, ...]
    """(B,) category of each prompt."""

    def by_category(self) -> dict[str, float]:
        """Mean of `correct` over the samples of each category."""
        groups: dict[str, list[float]] = {}
        for category, value in zip(self.categories, self.correct.tolist(), strict=True):
            groups.setdefault(category, []).append(value)
        return {name: sum(values) / len(values) for name, values in sorted(groups.items())}


@torch.no_grad()
def judge(images: Tensor, wanted: Sequence[Scene | str]) -> Verdict:
    """Judge images (B, 3, 32, 32) against scenes or prompts."""
    scenes = [parse(item) if isinstance(item, str) else item for item in wanted]
    seen = look(images)
    if len(seen) != len(scenes):
        raise ValueError(
            f"expected one scene an image, got {len(seen)} images, {len(scenes)} scenes"
        )
    rows = [demands(s, scene) for s, scene in zip(seen, scenes, strict=True)]
    flat = [[met for mets in row.values() for met in mets] for row in rows]
    nan = float("nan")
    return Verdict(
        correct=torch.tensor([float(all(mets)) for mets in flat]),
        fraction=torch.tensor([sum(mets) / len(mets) for mets in flat]),
        attributes={
            name: torch.tensor([float(all(r[name])) if r.get(name) else nan for r in rows])
            for name in ATTRIBUTES
        },
        categories=tuple(scene.category for scene in scenes),
    )


def demands(seen: Seen, scene: Scene) -> dict[str, list[bool]]:
    """Every single demand of a scene, by attribute, under its best assignment to objects."""
    common = {
        "background": [seen.background == scene.background],
        "count": [len(seen.objects) == scene.objects],
    }
    wanted = scene.things * scene.count
    missing = [Found(None, None, None, -99, -99)] * len(wanted)
    pool = (*seen.objects, *missing)[: max(len(wanted), len(seen.objects))]
    options = [
        {**common, **_assigned(chosen, scene, wanted)} for chosen in permutations(pool, len(wanted))
    ]
    return max(options, key=lambda option: sum(sum(mets) for mets in option.values()))


def _assigned(
    chosen: tuple[Found, ...], scene: Scene, wanted: tuple[Thing, ...]
) -> dict[str, list[bool]]:
    """Demands on objects, given which object is which thing."""
    pairs = list(zip(chosen, wanted, strict=True))
    found = {
        "shape": [seen.shape == thing.shape for seen, thing in pairs],
        "color": [seen.color == thing.color for seen, thing in pairs if thing.color],
        "size": [seen.size == thing.size for seen, thing in pairs if thing.size],
    }
    if scene.position is not None:
        found["position"] = [at_position(chosen[0], scene.position)]
    if scene.relation is not None:
        found["relation"] = [in_relation(chosen[0], chosen[1], scene.relation)]
    return found


def at_position(seen: Found, position: str) -> bool:
    """Whether an object is in that part of the image."""
    if position in ("left", "right", "center"):
        along, across = seen.x, seen.y
    else:
        along, across = seen.y, seen.x
    low, high = {"center": (13, 19), "left": (5, 11), "top": (5, 11)}.get(position, (21, 27))
    return (
        low <= along <= high and 9 <= across <= 23 and (position != "center" or 13 <= across <= 19)
    )


def in_relation(first: Found, second: Found, relation: str) -> bool:
    """Whether the first object stands so to the second, along the larger offset."""
    if min(first.x, second.x) < 0:
        return False
    dx, dy = second.x - first.x, second.y - first.y
    if relation in ("left of", "right of"):
        ahead, aside = (dx if relation == "left of" else -dx), dy
    else:
        ahead, aside = (dy if relation == "above" else -dy), dx
    return ahead > 6 and ahead > abs(aside)


@torch.no_grad()
def look(images: Tensor) -> list[Seen]:
    """What images (B, 3, 32, 32) show."""
    if tuple(images.shape[1:]) != (3, SIZE, SIZE):
        raise ValueError(f"expected images (B, 3, {SIZE}, {SIZE}), got {tuple(images.shape)}")
    images = images.detach().float().cpu()
    base = _border(images).median(dim=2).values  # (B, 3)
    backgrounds = _nearest(base, BACKGROUNDS, BACKGROUND_TOLERANCE)
    offset = images - base[:, :, None, None]
    labels = components(offset.norm(dim=1) > FOREGROUND)
    area = torch.zeros(len(images), SIZE * SIZE + 1).scatter_add_(
        1, labels.flatten(1), torch.ones(len(images), SIZE * SIZE)
    )
    area[:, 0] = 0
    size, label = area.topk(SLOTS, dim=1)  # (B, SLOTS)
    image, slot = (size >= MIN_AREA).nonzero(as_tuple=True)
    masks = labels[image] == label[image, slot][:, None, None]
    found = _recognise(masks, offset[image], base[image])
    groups: list[list[Found]] = [[] for _ in images]
    for b, thing in zip(image.tolist(), found, strict=True):
        groups[b].append(thing)
    return [Seen(bg, tuple(objects)) for bg, objects in zip(backgrounds, groups, strict=True)]


def components(mask: Tensor) -> Tensor:
    """Label connected pixels (eight neighbours): (B, 32, 32) bool to int64, 0 outside."""
    ids = torch.arange(1, SIZE * SIZE + 1, dtype=torch.float32).view(1, SIZE, SIZE) * mask
    while True:
        spread = F.max_pool2d(ids[:, None], 3, stride=1, padding=1)[:, 0] * mask
        if torch.equal(spread, ids):
            return ids.long()
        ids = spread


def _border(images: Tensor) -> Tensor:
    """Outermost pixels, (B, 3, 124)."""
    sides = (images[:, :, 0], images[:, :, -1], images[:, :, 1:-1, 0], images[:, :, 1:-1, -1])
    return torch.cat(sides, dim=2)


def _nearest(colors: Tensor, names: Sequence[str], tolerance: float) -> list[str | None]:
    """Name of the nearest colour to each row (P, 3), None beyond the tolerance."""
    distance, index = torch.cdist(colors, palette(names)).min(dim=1)
    pairs = zip(distance.tolist(), index.tolist(), strict=True)
    return [names[i] if d <= tolerance else None for d, i in pairs]


@cache
def templates() -> tuple[Tensor, tuple[tuple[str, str, int, int], ...]]:
    """Coverage of every shape, size and centre, (T, 1024), and what each row is."""
    rows, names = [], []
    for s, shape in enumerate(SHAPES):
        weights = [float(i == s) for i in range(len(SHAPES))]
        for size in SIZES:
            for y in range(6, 27):
                for x in range(6, 27):
                    rows.append([*weights, float(x), float(y), RADII[size], RADII[size]])
                    names.append((shape, size, x, y))
    return coverage(torch.tensor(rows)).flatten(1), tuple(names)


def _recognise(masks: Tensor, offset: Tensor, base: Tensor) -> list[Found]:
    """Recognise components: masks (P, 32, 32), offsets from the background (P, 3, 32, 32)."""
    core = -F.max_pool2d(-masks[:, None].float(), 3, stride=1, padding=1)
    core = torch.where(core.sum(dim=(2, 3), keepdim=True) > 0, core, masks[:, None].float())
    tint = (offset * core).sum(dim=(2, 3)) / core.sum(dim=(2, 3))  # (P, 3)
    colors = _nearest(base + tint, COLORS, COLOR_TOLERANCE)
    along = (offset * tint[:, :, None, None]).sum(dim=1) / tint.square().sum(dim=1)[:, None, None]
    near = F.max_pool2d(masks[:, None].float(), 3, stride=1, padding=1)[:, 0]
    cover = (along.clamp(0, 1) * near).flatten(1)  # (P, 1024)
    bank, names = templates()
    product = cover @ bank.T
    overlap = product / (cover.square().sum(dim=1)[:, None] + bank.square().sum(dim=1) - product)
    best, index = overlap.max(dim=1)
    found = []
    for color, score, i in zip(colors, best.tolist(), index.tolist(), strict=True):
        shape, size, x, y = names[i]
        clear = score >= SHAPE_OVERLAP
        found.append(Found(shape if clear else None, color, size if clear else None, x, y))
    return found
