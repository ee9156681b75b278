"""How different the samples of one prompt are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

SIDE = 32
"""Pixels of a side that `low_resolution` keeps at most."""


def low_resolution(images: Tensor) -> Tensor:
    """(B, D) of images (B, 3, H, W): area means of at most 32 x 32 pixels, D numbers an image."""
    height, width = (min(side, SIDE) for side in images.shape[-2:])
    return adaptive_avg_pool2d(images, (height, width)).flatten(1)


def mean_square_distance(features: Tensor) -> float:
    """Mean over pairs of samples of the root mean square difference of their features.

    features: (S, D) of one prompt, S at least 2.
    """
    return float(torch.pdist(features.double()).mean()) / features.shape[1] ** 0.5


def cosine_distance(features: Tensor) -> float:
    """Mean over pairs of samples of 1 - cosine. features: (S, D) of one prompt, S at least 2."""
    unit = normalize(features.double(), dim=1)
    rows, columns = torch.triu_indices(len(unit), len(unit), offset=1)
    return float((1 - (unit[rows] * unit[columns]).sum(dim=1)).mean())


def pixel_spread(images: Tensor) -> float:
    """Standard deviation over the samples of a prompt (S - 1), mean over pixels and channels.

    images: (S, 3, H, W) of one prompt, S at least 2.
    """
    return float(images.double().std(dim=0).mean())
