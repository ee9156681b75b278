"""Images to the pixels that a network takes: ImageReward's square, Qwen2-VL's patches.

All functions take images (B, 3, H, W) in [0, 1] and return normalised pixels, at least float32.
`rounding = "none"` works on the float tensor and is what gradients are of. `"pillow"` follows the
originals, which work on pictures: 8-bit levels, resized by Pillow itself; its gradient is that of
"none" (straight-through).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

Rounding = Literal["none", "pillow"]


def imagereward_pixels(images: Tensor, size: int = 224, *, rounding: Rounding = "none") -> Tensor:
    """Shortest side to `size` by bicubic, the other floored, the middle square, normalised.

    (B, 3, size, size). The crop's offset is rounded half to even. ImageReward scores pictures
    ("pillow"); ReFL takes its gradient on tensors ("none"), with antialias and without a clamp.
    """
    images = checked(images)
    height, width = images.shape[-2:]
    shortest = min(height, width)
    target = (int(size * height / shortest), int(size * width / shortest))
    images = resized(images, target, rounding)
    top, left = (round((side - size) / 2) for side in target)
    return normalised(images[..., top : top + size, left : left + size])


def qwen_size(height: int, width: int, pixels: int, factor: int = 28) -> tuple[int, int]:
    """The size near `pixels` pixels, both sides multiples of `factor`, the shape nearly kept.

    Qwen2-VL's rule where the least and the largest number of pixels are the same. ValueError for
    an image 200 times as long as wide.
    """
    if max(height, width) > 200 * min(height, width):
        raise ValueError(f"an image of {height} x {width} is too long for Qwen2-VL (200 to 1)")
    near = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if near[0] * near[1] == pixels:
        return near[0], near[1]
    if near[0] * near[1] > pixels:
        beta = math.sqrt(height * width / pixels)
        found = [max(factor, math.floor(s / beta / factor) * factor) for s in (height, width)]
    else:
        beta = math.sqrt(pixels / (height * width))
        found = [math.ceil(s * beta / factor) * factor for s in (height, width)]
    return found[0], found[1]


def qwen_patches(
    images: Tensor,
    size: tuple[int, int],
    *,
    rounding: Rounding = "none",
    patch: int = 14,
    merge: int = 2,
    frames: int = 2,
) -> Tensor:
    """Patches (B, h w, 3 frames patch^2) of images resized to `size` by bicubic.

    The order is Qwen2-VL's: patches that will be merged are neighbours. A still image is repeated
    for each of the `frames` of a patch.
    """
    pixels = normalised(resized(checked(images), size, rounding))
    count, rows, columns = len(pixels), size[0] // patch, size[1] // patch
    grid = pixels.reshape(
        count, 3, rows // merge, merge, patch, columns // merge, merge, patch
    )  # (B, C, h, m, p, w, m, p)
    grid = grid.permute(0, 2, 5, 3, 6, 1, 4, 7)  # (B, h, w, m, m, C, p, p)
    grid = grid.unsqueeze(6).expand(*grid.shape[:6], frames, patch, patch)
    return grid.reshape(count, rows * columns, 3 * frames * patch * patch)


def normalised(images: Tensor) -> Tensor:
    """CLIP's mean and standard deviation, one a channel."""
    mean = images.new_tensor(MEAN).view(3, 1, 1)
    return (images - mean) / images.new_tensor(STD).view(3, 1, 1)


def resized(images: Tensor, target: tuple[int, int], rounding: Rounding) -> Tensor:
    """Bicubic with antialias to (H, W)."""
    plain = images
    if tuple(images.shape[-2:]) != target:
        plain = F.interpolate(images, target, mode="bicubic", antialias=True, align_corners=False)
    if rounding == "none":
        return plain
    rounded = _resized_pictures(images.detach(), target).to(plain)
    return plain + (rounded - plain).detach() if plain.requires_grad else rounded


def checked(images: Tensor) -> Tensor:
    """Float images of three channels, at least float32."""
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ValueError(f"expected images (B, 3, H, W), got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise ValueError(f"expected images in [0, 1] as floats, got {images.dtype}")
    return images.float() if images.element_size() < 4 else images


def picture(image: Tensor) -> Image.Image:
    """(3, H, W) in [0, 1] to an 8-bit picture; values outside are clamped."""
    levels = (image.detach().double().clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).cpu().numpy())


def _resized_pictures(images: Tensor, target: tuple[int, int]) -> Tensor:
    """Resize 8-bit pictures by Pillow; float32 levels over 255, as torchvision's ToTensor."""
    size = (target[1], target[0])
    rows = [
        torch.from_numpy(np.array(picture(image).resize(size, Image.Resampling.BICUBIC)))
        for image in images
    ]
    levels = torch.stack(rows).permute(0, 3, 1, 2)
    return levels.to(images.dtype) / 255
