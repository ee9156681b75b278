"""Images to the pixels a CLIP tower takes, by every rule the field's code uses, in plain torch.

All functions take images (B, 3, H, W) in [0, 1] and return normalised pixels, at least float32.
The default of each is differentiable and exact where the original works on float tensors. With
`rounding` they follow the originals that work on 8-bit pictures; the value is then rounded, and
its gradient is that of the plain form (straight-through).
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

Rounding = Literal["none", "levels", "two-pass", "two-pass-width-first"]
"""`none`: nothing is rounded. `levels`: the image to 8 bits, as a saved picture is.
`two-pass`: the image, and what each pass of the resize gives, as Pillow 13 resizes a picture.
`two-pass-width-first`: the same as older Pillows and torchvision's 8-bit tensors do it. The two
differ only for tall images."""
_TWO_PASSES = ("two-pass", "two-pass-width-first")


def hps_pixels(
    images: Tensor,
    size: int = 224,
    *,
    antialias: bool = True,
    rounding: Rounding = "none",
    always_pad: bool = False,
) -> Tensor:
    """HPSv2: the longest side to `size` by bicubic, zeros around it, then normalise.

    The original resizes the float tensor and clamps nothing. An image whose longest side is
    `size` already is neither resized nor padded there, and its model then fails on one that is
    not square; `always_pad` pads it like any other.
    antialias: False is what torchvision up to 0.16 did with tensors.
    rounding: "two-pass" is the order of code that resizes the picture first.
    Source: HPSv2, src/open_clip/transform.py (ResizeMaxSize).
    """
    if rounding in _TWO_PASSES and not antialias:
        raise ValueError(f"a picture is always resized with antialias; rounding {rounding!r}")
    images = _checked(images)
    height, width = images.shape[-2:]
    longest = max(height, width)
    scale = size / longest
    target = (round(height * scale), round(width * scale))
    if min(target) < 1:
        raise ValueError(f"an image of {height} x {width} has no pixel left at {size}")
    if longest != size:
        images = _resized(images, target, "bicubic", rounding, antialias=antialias)
    else:
        images = _levels_of(images, rounding)
    if longest != size or always_pad:
        images = _padded(images, size)
    return normalised(images)


def openai_pixels(images: Tensor, size: int = 224, *, rounding: Rounding = "none") -> Tensor:
    """OpenAI CLIP, open_clip and ImageReward: shortest side to `size` by bicubic, centre crop.

    The crop's offset is rounded half to even. The originals take pictures (rounding "two-pass");
    ReFL takes tensors (rounding "none").
    """
    return _cropped(images, size, "bicubic", rounding, floored=False)


def transformers_pixels(images: Tensor, size: int = 224, *, rounding: Rounding = "none") -> Tensor:
    """transformers' CLIPImageProcessor, as PickScore uses it: `openai_pixels`, offset floored.

    The original takes pictures (rounding "two-pass").
    """
    return _cropped(images, size, "bicubic", rounding, floored=True)


def bilinear_pixels(images: Tensor, size: int = 224, *, rounding: Rounding = "none") -> Tensor:
    """CLIPScore of FlowBP and DiffusionNFT: shortest side to `size` by bilinear, centre crop."""
    if rounding in _TWO_PASSES:
        raise ValueError(f"the bilinear form takes tensors; rounding {rounding!r} is for pictures")
    return _cropped(images, size, "bilinear", rounding, floored=False)


def normalised(images: Tensor) -> Tensor:
    """CLIP's mean and standard deviation, one a channel."""
    mean = images.new_tensor(MEAN).view(3, 1, 1)
    return (images - mean) / images.new_tensor(STD).view(3, 1, 1)


def _cropped(images: Tensor, size: int, mode: str, rounding: Rounding, *, floored: bool) -> Tensor:
    """Shortest side to `size`, the other floored, then the middle square."""
    images = _checked(images)
    height, width = images.shape[-2:]
    shortest = min(height, width)
    target = (int(size * height / shortest), int(size * width / shortest))
    images = _resized(images, target, mode, rounding, antialias=True)
    extra = target[0] - size, target[1] - size
    top, left = (n // 2 if floored else round(n / 2) for n in extra)
    return normalised(images[..., top : top + size, left : left + size])


def _checked(images: Tensor) -> Tensor:
    """Float images of three channels, at least float32."""
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ValueError(f"expected images (B, 3, H, W), got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise ValueError(f"expected images in [0, 1] as floats, got {images.dtype}")
    return images.float() if images.element_size() < 4 else images


def _resized(
    images: Tensor, target: tuple[int, int], mode: str, rounding: Rounding, *, antialias: bool
) -> Tensor:
    """Resize to (H, W)."""
    start = _levels_of(images, rounding) if rounding == "levels" else images
    plain = _interpolated(start, target, mode, antialias=antialias)
    if rounding not in _TWO_PASSES:
        return plain
    rounded = _resized_picture(images.detach(), target, mode, rounding)
    return _straight_through(rounded.to(plain), plain)


def _resized_picture(
    images: Tensor, target: tuple[int, int], mode: str, rounding: Rounding
) -> Tensor:
    """Resize 8-bit levels one axis at a time, each pass rounded half up and clamped.

    In float64: Pillow's arithmetic is fixed-point, and float32 would miss more of its ties.
    """
    height, width = images.shape[-2:]
    lost_rows, lost_columns = height - target[0], width - target[1]
    # Pillow 13's choice, found by measurement; it is exact on every size that was tried.
    height_first = rounding == "two-pass" and lost_rows > max(0, 2 * lost_columns)
    middle = (target[0], width) if height_first else (height, target[1])
    levels = _levels(images.double()) * 255
    for size in (middle, target):
        levels = _interpolated(levels, size, mode).clamp(0, 255).add(0.5).floor()
    return levels / 255


def _interpolated(
    images: Tensor, target: tuple[int, int], mode: str, *, antialias: bool = True
) -> Tensor:
    if tuple(images.shape[-2:]) == target:
        return images
    return F.interpolate(images, target, mode=mode, antialias=antialias, align_corners=False)


def _levels(images: Tensor) -> Tensor:
    """The nearest of 256 levels in [0, 1]."""
    return (images.clamp(0, 1) * 255).round() / 255


def _levels_of(images: Tensor, rounding: Rounding) -> Tensor:
    if rounding == "none":
        return images
    return _straight_through(_levels(images.detach()), images)


def _straight_through(value: Tensor, plain: Tensor) -> Tensor:
    """`value`, with the gradient of `plain`."""
    return plain + (value - plain).detach() if plain.requires_grad else value


def _padded(images: Tensor, size: int) -> Tensor:
    """Zeros to `size` on both sides; the smaller half left and above."""
    height, width = images.shape[-2:]
    left, top = (size - width) // 2, (size - height) // 2
    return F.pad(images, (left, size - width - left, top, size - height - top))
