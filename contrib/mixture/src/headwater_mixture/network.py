"""The network: the closed form, and a correction that is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwater_mixture.flow import velocity


class MixtureFlow(nn.Module):
    """v = closed form + correction. The correction is zero at first, so that the flow is exact."""

    def __init__(self, means: Tensor, spread: float, width: int) -> None:
        super().__init__()
        self.register_buffer("means", means, persistent=False)
        self.means: Tensor
        self.spread = spread
        self.correcting = True
        latent = means[0].numel()
        self.inner = nn.Linear(latent + 1 + len(means), width, dtype=means.dtype)
        self.outer = nn.Linear(width, latent, dtype=means.dtype)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, x: Tensor, sigma: Tensor, weights: Tensor) -> Tensor:
        """v (B, 3, 8, 8) of x (B, 3, 8, 8), sigma (B,) and the prompts' weights (B, K)."""
        dtype = self.means.dtype
        x, sigma, weights = x.to(dtype), sigma.to(dtype), weights.to(dtype)
        v = velocity(x, sigma, weights, self.means, self.spread)
        if not self.correcting:
            return v
        given = torch.cat([x.flatten(1), sigma[:, None], weights], dim=1)
        correction: Tensor = self.outer(nn.functional.silu(self.inner(given)))
        return v + correction.view_as(x)
