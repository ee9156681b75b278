"""Each reward's share of an endpoint gradient, read in the one backward there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Sizes = dict[str, Tensor]
"""KEY: sum over samples of the norm of the loss's gradient in the image, through that reward."""


def watched(images: Tensor, key: str, sizes: Sizes) -> Tensor:
    """The same images (B, 3, H, W); what a backward brings back through them goes into `sizes`.

    A sample whose gradient is not finite is left out, as it is from the update.
    """
    view = images.view_as(images)

    def add(gradient: Tensor) -> None:
        norms = gradient.detach().flatten(1).to(torch.promote_types(gradient.dtype, torch.float32))
        norms = norms.norm(dim=1).double()
        sizes[key] = torch.where(norms.isfinite(), norms, 0.0).sum()

    view.register_hook(add)
    return view


def shares(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """KEY: its size over all micro-batches as a fraction of all; they add up to 1.

    Empty where no reward has a gradient.
    """
    sums: dict[str, float] = {}
    for part in parts:
        for key, size in part.items():
            sums[key] = sums.get(key, 0.0) + float(size)
    whole = sum(sums.values())
    return {key: size / whole for key, size in sums.items()} if whole > 0 else {}
