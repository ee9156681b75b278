"""The two opponent channels, and what is measured in them."""

from __future__ import annotations

from torch import Tensor


def opponents(images: Tensor) -> tuple[Tensor, Tensor]:
    """rg = R - G and yb = (R + G) / 2 - B, (B, H, W) each.

    images: (B, 3, H, W), any scale; the channels keep it. ValueError for another shape.
    """
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"expected images (B, 3, H, W), got {tuple(images.shape)}")
    red, green, blue = images.unbind(dim=1)
    return red - green, (red + green) / 2 - blue


def moments(channel: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance of a channel (B, H, W) over each image: (B,) each."""
    flat = channel.flatten(1)
    return flat.mean(dim=1), flat.var(dim=1, unbiased=False)
