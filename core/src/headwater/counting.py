"""The backbone as a run's hooks see it: what is asked of the network is counted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwater.errors import HeadwaterError
from headwater.faults import blamed, tensor_fault
from headwater.sharding import synchronise
from headwater.types import Prompt, at_least_float32

if TYPE_CHECKING:
    from headwater.composition import Named


class CountedBackbone:
    """A backbone that counts the samples whose velocity was asked for, by whomever.

    `network_forwards` and `network_backwards` are what one velocity takes. Velocities are computed
    in the run's precision. Everything else is the wrapped backbone's own.
    """

    def __init__(
        self,
        backbone: Any,
        guidance: float,
        precision: str = "full",
        named: Named | None = None,
    ) -> None:
        self.plugin = backbone
        self.named = named
        """Whom a fault is told of; without it, only the fault."""
        self.mixed = precision == "bfloat16"
        self.samples = 0
        self.last_work = True
        """Whether the gradients of an optimizer step are complete after the work under way."""
        self.network_forwards, self.network_backwards = backbone.network_evaluations(guidance)

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        """As the backbone's; (B, *latent) counts B samples."""
        self.samples += len(x)
        with self._blamed("velocity"):
            if self.mixed:
                with torch.autocast(x.device.type, torch.bfloat16):
                    out: Tensor = at_least_float32(self.plugin.velocity(x, sigma, conditioning))
            else:
                out = self.plugin.velocity(x, sigma, conditioning)
            self._check(out, tuple(x.shape), x.device, "a velocity")
        return out

    def encode(self, prompts: Sequence[Prompt]) -> Any:
        """As the backbone's; a conditioning of every prompt."""
        with self._blamed("encode"):
            found = self.plugin.encode(prompts)
            if found is not None and len(found) != len(prompts):
                raise HeadwaterError(
                    f"expected a conditioning of length {len(prompts)}, got {len(found)}"
                )
        return found

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """As the backbone's; (B, *latent)."""
        with self._blamed("noise"):
            found: Tensor = self.plugin.noise(shape, seeds)
            self._check(found, (len(seeds), *shape), None, "noise")
        return found

    def decode(self, latents: Tensor) -> Tensor:
        """As the backbone's; images (B, 3, H, W)."""
        with self._blamed("decode"):
            images: Tensor = self.plugin.decode(latents)
            shape = (len(latents), 3, *getattr(images, "shape", ())[2:])
            if getattr(images, "ndim", 0) != 4:
                shape = (len(latents), 3, *"HW")
            self._check(images, shape, latents.device, "images")
        return images

    def _blamed(self, call: str) -> AbstractContextManager[None]:
        return nullcontext() if self.named is None else blamed(self.named, call)

    @staticmethod
    def _check(found: Any, shape: Any, device: torch.device | None, what: str) -> None:
        if fault := tensor_fault(found, shape, device, what):
            raise HeadwaterError(fault)

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
