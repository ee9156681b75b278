"""The measure as a pure function of images."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import avg_pool2d

from opponent_colours import moments, opponents

LEVELS = 255.0
"""The paper's images have values from 0 to 255."""
STRENGTH = 0.3
"""Weight of the mean colour beside the spread."""


def colourfulness(images: Tensor, pool: int = 1) -> Tensor:
    """M / 100 of images (B, 3, H, W) in [0, 1]: (B,).

    M = sqrt(var_rg + var_yb) + 0.3 sqrt(mean_rg^2 + mean_yb^2) over values of 0 to 255
    (Hasler and Süsstrunk 2003). ValueError where `pool` does not divide the size.
    """
    if pool > 1:
        height, width = images.shape[-2:]
        if height % pool or width % pool:
            raise ValueError(f"pool = {pool} does not divide images of {height} x {width}")
        images = avg_pool2d(images, pool)
    (mean_rg, var_rg), (mean_yb, var_yb) = (moments(c) for c in opponents(images))
    spread = _root(var_rg + var_yb)
    strength = _root(mean_rg**2 + mean_yb**2)
    return (spread + STRENGTH * strength) * (LEVELS / 100)


def _root(square: Tensor) -> Tensor:
    """sqrt with a finite slope at 0, as a grey image has; it is off by at most 1e-4."""
    return (square + 1e-8).sqrt() - 1e-4
