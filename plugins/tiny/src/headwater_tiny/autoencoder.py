"""An autoencoder of 8 x 8 patches: image (3, 32, 32) to latent (16, 4, 4) and back.

Every patch is coded by itself by one small MLP, so a sample never depends on its batch.
Latents have zero mean and unit variance by channel over drawings, through stored statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PATCH = 8
CHANNELS = 16


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers with GELU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, outputs),
    )


class PatchAutoencoder(nn.Module):
    """MLPs on 8 x 8 patches."""

    mean: Tensor
    std: Tensor

    def __init__(self, hidden: int = 288, channels: int = CHANNELS) -> None:
        super().__init__()
        self.encoder = mlp(3 * PATCH * PATCH, hidden, channels)
        self.decoder = mlp(channels, hidden, 3 * PATCH * PATCH)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    def encode(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] to latents (B, 16, H/8, W/8)."""
        B, _, H, W = images.shape
        codes = (self.encode_patches(patches(images)) - self.mean) / self.std
        return codes.view(B, H // PATCH, W // PATCH, -1).permute(0, 3, 1, 2)

    def decode(self, latents: Tensor) -> Tensor:
        """Latents (B, 16, h, w) to images (B, 3, 8h, 8w) in [0, 1], smooth."""
        B, C, h, w = latents.shape
        codes = latents.permute(0, 2, 3, 1).reshape(B * h * w, C) * self.std + self.mean
        cells = self.decode_patches(codes).view(B, h, w, 3, PATCH, PATCH)
        return cells.permute(0, 3, 1, 4, 2, 5).reshape(B, 3, h * PATCH, w * PATCH)

    def encode_patches(self, flat: Tensor) -> Tensor:
        """Patches (P, 192) to raw codes (P, 16)."""
        return self.encoder(flat * 2 - 1)

    def decode_patches(self, codes: Tensor) -> Tensor:
        """Raw codes (P, 16) to patches (P, 192) in [0, 1]."""
        return torch.sigmoid(self.decoder(codes))


def patches(images: Tensor, size: int = PATCH) -> Tensor:
    """Cut images (B, 3, H, W) into rows (B * H/size * W/size, 3 * size * size)."""
    B, C, H, W = images.shape
    cells = images.view(B, C, H // size, size, W // size, size)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(-1, C * size * size)
