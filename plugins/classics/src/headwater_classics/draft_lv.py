"""The estimator `draft-lv`: the last step, on the sample and on re-noised copies of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.randomness import noise, seed_of
from headwater.types import Group, Rollout, Surrogate, at_least_float32
from headwater.validators import at_least, one_of


@attrs.frozen(eq=False)
class DraftLV:
    """Low-variance DRaFT: the last step on B (1 + n) states (arXiv 2309.17400).

    The re-noised states are x' = (1 - s) x_N + s eps at s = sigmas[N-1]; their endpoints
    x' - s v(x') cost one plain forward each. The loss is the mean over all B (1 + n).
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    paper: ClassVar[str] = "arXiv 2309.17400"
    title: ClassVar[str] = "DRaFT-LV"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample and `n` re-noised copies, or the sample",
        "active": "the last step",
        "weights": "its own step; earlier ones are dropped",
        "coupling": "0",
    }

    endpoint: Literal["sample-and-renoised", "sample"] = attrs.field(
        default="sample-and-renoised", validator=one_of("sample-and-renoised", "sample")
    )
    """What the reward sees; "sample" leaves the re-noised copies out."""
    n: int = attrs.field(default=2, validator=at_least(0))
    """Re-noised copies of each sample, under "sample-and-renoised"."""

    @hookimpl
    def build_surrogate(self, backbone: Any, rollout: Rollout) -> Surrogate:
        """A rollout of one step, the real samples first, then n blocks of B copies."""
        n = self.n if self.endpoint == "sample-and-renoised" else 0
        last = one_step(backbone, rollout, n)
        group = Group((0,), (0,), torch.ones(1, 1, dtype=torch.float64))
        return Surrogate((group,), last.state(1), None, last)


@torch.no_grad()
def one_step(backbone: Any, rollout: Rollout, n: int) -> Rollout:
    """The last step of a rollout with `n` re-noised copies of every sample appended."""
    end, size = rollout.steps, len(rollout.batch)
    sigma = rollout.sigmas[end - 1]
    rows = list(range(size)) * (1 + n)
    starts = torch.cat([rollout.state(end - 1), *(renoised(rollout, r) for r in range(n))])
    velocities = rollout.velocity(end - 1)
    ends = rollout.state(end)
    batch = attrs.evolve(rollout.batch.index(rows), steps=1, stochastic_steps=(), trained_steps=())
    if n:
        copies = batch.conditioning
        copies = None if copies is None else copies.index(list(range(size, len(rows))))
        x = starts[size:]
        v = at_least_float32(backbone.velocity(x, sigma.to(x.device).expand(len(x)), copies))
        velocities = torch.cat([velocities, v])
        ends = torch.cat([ends, x - float(sigma) * v])
    return Rollout(
        batch=batch,
        latents=torch.stack([starts, ends]),
        sigmas=rollout.sigmas[end - 1 :],
        velocities=velocities[None],
        policy_version=rollout.policy_version,
    )


def renoised(rollout: Rollout, copy: int) -> Tensor:
    """(B, *latent) states at the last sigma, noise seeded by sample and copy."""
    image = rollout.state(rollout.steps)
    sigma = float(rollout.sigmas[rollout.steps - 1])
    seeds = [seed_of(seed, "renoise", copy) for seed in rollout.batch.seeds]
    fresh = noise(tuple(image.shape[1:]), seeds, image.dtype, image.device)
    return (1 - sigma) * image + sigma * fresh
