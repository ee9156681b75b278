"""Counting what a run asks of the network."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class CountedBackbone:
    """A backbone that counts the samples whose velocity was asked for, by whomever.

    `network_forwards` and `network_backwards` are what one velocity takes.

    Everything else is the wrapped backbone's own.
    """

    def __init__(self, backbone: Any, guidance: float) -> None:
        self.plugin = backbone
        self.samples = 0
        self.network_forwards, self.network_backwards = backbone.network_evaluations(guidance)

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        """As the backbone's; (B, *latent) counts B samples."""
        self.samples += len(x)
        out: Tensor = self.plugin.velocity(x, sigma, conditioning)
        return out

    @property
    def forwards(self) -> int:
        """Network forwards so far, summed over samples."""
        return self.samples * self.network_forwards

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plugin, name)
