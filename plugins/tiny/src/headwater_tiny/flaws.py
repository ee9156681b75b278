"""Graded flaws: what is wrong with a drawing, one thing at a time.

A flaw of the layout breaks at least one demand of the scene; `spoil` checks that it does. A flaw
of the image (blur, noise, blend) leaves the layout alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from headwater_tiny.detector import Found, Seen, demands
from headwater_tiny.draw import Layout, Placed, place
from headwater_tiny.grammar import BACKGROUNDS, COLORS, POSITIONS, SHAPES, Scene

T = TypeVar("T")
LAYOUT_FLAWS = (
    "color",
    "shape",
    "count",
    "position",
    "relation",
    "swap",
    "background",
    "missing",
    "size",
    "deform",
)
IMAGE_FLAWS = ("blur", "noise", "blend")
_CORNERS = ((8, 8), (24, 8), (8, 24), (24, 24))


def unmet(layout: Layout, scene: Scene) -> int:
    """How many demands of the scene a layout breaks, by the detector's rules."""
    objects = tuple(
        Found(None if _deformed(o) else o.shape, o.color, o.size, o.x, o.y) for o in layout.objects
    )
    groups = demands(Seen(layout.background, objects), scene)
    return sum(not met for mets in groups.values() for met in mets)


def _deformed(thing: Placed) -> bool:
    return thing.morph is not None or thing.stretch != 1.0


def spoil(layout: Layout, scene: Scene, kind: str, generator: Generator) -> Layout | None:
    """The layout with one more flaw of a kind; None where that breaks no further demand."""
    changed = _CHANGES[kind](layout, scene, generator)
    if changed is None or unmet(changed, scene) <= unmet(layout, scene):
        return None
    return changed


def spoil_any(layout: Layout, scene: Scene, generator: Generator) -> tuple[Layout, str]:
    """One more flaw of a random kind that applies; returns the kind too."""
    for i in torch.randperm(len(LAYOUT_FLAWS), generator=generator).tolist():
        changed = spoil(layout, scene, LAYOUT_FLAWS[i], generator)
        if changed is not None:
            return changed, LAYOUT_FLAWS[i]
    return _missing(layout, scene, generator) or layout, "missing"


def _pick(choices: Sequence[T], generator: Generator) -> T:
    return choices[int(torch.randint(len(choices), (1,), generator=generator))]


def _other(choices: Sequence[str], value: str, generator: Generator) -> str:
    return _pick([c for c in choices if c != value], generator)


def _change_one(
    layout: Layout, generator: Generator, change: Callable[[Placed], Placed]
) -> Layout | None:
    """Apply `change` to one object."""
    if not layout.objects:
        return None
    k = _pick(range(len(layout.objects)), generator)
    objects = list(layout.objects)
    objects[k] = change(objects[k])
    return attrs.evolve(layout, objects=tuple(objects))


def _color(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    def change(o: Placed) -> Placed:
        return attrs.evolve(o, color=_other(COLORS, o.color, generator))

    return _change_one(layout, generator, change)


def _shape(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    def change(o: Placed) -> Placed:
        return attrs.evolve(o, shape=_other(SHAPES, o.shape, generator))

    return _change_one(layout, generator, change)


def _size(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    def change(o: Placed) -> Placed:
        return attrs.evolve(o, size="small" if o.size == "large" else "large")

    return _change_one(layout, generator, change)


def _deform(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    def change(o: Placed) -> Placed:
        if float(torch.rand(1, generator=generator)) < 0.5:
            return attrs.evolve(o, morph=_other(SHAPES, o.shape, generator))
        return attrs.evolve(o, stretch=_pick((0.45, 0.6, 1.65, 2.2), generator))

    return _change_one(layout, generator, change)


def _background(layout: Layout, scene: Scene, generator: Generator) -> Layout:
    return attrs.evolve(layout, background=_other(BACKGROUNDS, layout.background, generator))


def _missing(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    if not layout.objects:
        return None
    k = _pick(range(len(layout.objects)), generator)
    return attrs.evolve(layout, objects=layout.objects[:k] + layout.objects[k + 1 :])


def _count(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    """One object more, a copy of one there or a new one, where there is room for it."""
    objects = layout.objects
    if not objects:
        return None
    free = [
        c for c in _CORNERS if all(max(abs(c[0] - o.x), abs(c[1] - o.y)) >= 16 for o in objects)
    ]
    if not free:
        return None
    x, y = _pick(free, generator)
    added = attrs.evolve(_pick(objects, generator), x=x, y=y)
    if len(scene.things) == 2 and float(torch.rand(1, generator=generator)) < 0.5:
        added = attrs.evolve(added, color=_pick(COLORS, generator), shape=_pick(SHAPES, generator))
    return attrs.evolve(layout, objects=(*objects, added))


def _position(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    if scene.position is None or len(layout.objects) != 1:
        return None
    moved = attrs.evolve(scene, position=_other(POSITIONS, scene.position, generator))
    there = place(moved, generator).objects[0]
    return attrs.evolve(layout, objects=(attrs.evolve(layout.objects[0], x=there.x, y=there.y),))


def _relation(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    """The two objects change places, or stand in another relation."""
    if scene.relation is None or len(layout.objects) != 2:
        return None
    first, second = layout.objects
    a, b = (second.x, second.y), (first.x, first.y)
    if float(torch.rand(1, generator=generator)) < 0.5:
        a, b = a[::-1], b[::-1]
    if float(torch.rand(1, generator=generator)) < 0.3:
        a, b = b, a
    moved = (attrs.evolve(first, x=a[0], y=a[1]), attrs.evolve(second, x=b[0], y=b[1]))
    return attrs.evolve(layout, objects=moved)


def _swap(layout: Layout, scene: Scene, generator: Generator) -> Layout | None:
    """Two objects exchange their colours, or their sizes."""
    if len(layout.objects) != 2:
        return None
    first, second = layout.objects
    name = "size" if scene.category == "two_object" else "color"
    left, right = getattr(first, name), getattr(second, name)
    swapped = (attrs.evolve(first, **{name: right}), attrs.evolve(second, **{name: left}))
    return attrs.evolve(layout, objects=swapped)


_CHANGES = {
    "color": _color,
    "shape": _shape,
    "count": _count,
    "position": _position,
    "relation": _relation,
    "swap": _swap,
    "background": _background,
    "missing": _missing,
    "size": _size,
    "deform": _deform,
}


def blur(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of images (B, 3, H, W), edges repeated."""
    reach = max(1, int(3 * sigma))
    axis = torch.arange(-reach, reach + 1, dtype=images.dtype)
    kernel = torch.exp(-axis.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1).repeat(3, 1, 1, 1)
    wide = F.pad(images, (reach, reach, reach, reach), mode="replicate")
    return F.conv2d(F.conv2d(wide, kernel, groups=3), kernel.transpose(2, 3), groups=3)


def degrade(images: Tensor, others: Tensor, kind: str, generator: Generator) -> Tensor:
    """A flaw of the image: blur, noise, or a blend with images of other scenes."""
    draw = float(torch.rand(1, generator=generator))
    if kind == "blur":
        return blur(images, 1.0 + 1.5 * draw)
    if kind == "noise":
        noise = torch.randn(images.shape, generator=generator)
        return (images + (0.1 + 0.2 * draw) * noise).clamp(0, 1)
    if kind == "blend":
        return torch.lerp(images, others, 0.3 + 0.4 * draw)
    raise ValueError(f"no image flaw {kind!r}; there are {', '.join(IMAGE_FLAWS)}")
