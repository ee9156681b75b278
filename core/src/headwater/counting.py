"""The backbone as a run's hooks see it: what is asked of the network is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwater.sharding import synchronise
from headwater.types import at_least_float32


class CountedBackbone:
    """A backbone that counts the samples whose velocity was asked for, by whomever.

    `network_forwards` and `network_backwards` are what one velocity takes. Velocities are computed
    in the run's precision. Everything else is the wrapped backbone's own.
    """

    def __init__(self, backbone: Any, guidance: float, precision: str = "full") -> None:
        self.plugin = backbone
        self.mixed = precision == "bfloat16"
        self.samples = 0
        self.last_work = True
        """Whether the gradients of an optimizer step are complete after the work under way."""
        self.network_forwards, self.network_backwards = backbone.network_evaluations(guidance)

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        """As the backbone's; (B, *latent) counts B samples."""
        self.samples += len(x)
        if not self.mixed:
            out: Tensor = self.plugin.velocity(x, sigma, conditioning)
            return out
        with torch.autocast(x.device.type, torch.bfloat16):
            return at_least_float32(self.plugin.velocity(x, sigma, conditioning))

    def gradient_sync(self, *, last: bool) -> None:
        """Before a group goes backward; `last`: no other of its micro-batch follows.

        A sharded network reduces its gradients over the processes once a step, at its end.
        """
        synchronise(getattr(self.plugin, "network", None), on=last and self.last_work)

    @property
    def forwards(self) -> int:
        """Network forwards so far, summed over samples."""
        return self.samples * self.network_forwards

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plugin, name)
