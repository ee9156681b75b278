"""Core's own `sample_rollout`: the loop over steps."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from headwater.markers import hookimpl
from headwater.protocols import Backbone, Dynamics
from headwater.randomness import noise, seed_of
from headwater.types import Batch, Request, Rollout, at_least_float32

STORES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@attrs.frozen(eq=False)
class RolloutLoop:
    """Euler, with the run's dynamics at the batch's stochastic steps."""

    @hookimpl
    def sample_rollout(self, backbone: Backbone, dynamics: Dynamics, batch: Batch) -> Rollout:
        """N velocities; states are rounded to `batch.store` before anything reads them."""
        with torch.no_grad():
            return _sample(backbone, dynamics, batch)


def _sample(backbone: Backbone, dynamics: Dynamics, batch: Batch) -> Rollout:
    shape = backbone.shape(Request(batch.height, batch.width))
    sigmas = backbone.sigmas(batch.steps, shape)
    start = backbone.noise(shape, batch.start_seeds or batch.seeds)
    x = _stored(at_least_float32(start), batch.store)
    states, velocities, log_probs = [x], [], []
    for i in range(batch.steps):
        x = at_least_float32(x)
        sigma = sigmas[i].to(x.device).expand(len(batch))
        velocities.append(backbone.velocity(x, sigma, batch.conditioning))
        v = at_least_float32(velocities[-1])
        if i in batch.stochastic_steps:
            x, log_prob = _stochastic_step(dynamics, batch, x, v, i, sigmas)
        else:
            h = float(sigmas[i]) - float(sigmas[i + 1])
            x, log_prob = _stored(x - h * v, batch.store), x.new_zeros(len(batch))
        states.append(x)
        log_probs.append(log_prob)
    return Rollout(
        batch=batch,
        latents=torch.stack(states),
        sigmas=sigmas,
        velocities=torch.stack(velocities),
        log_probs=torch.stack(log_probs) if batch.stochastic_steps else None,
        policy_version=batch.policy_version,
    )


def _stochastic_step(
    dynamics: Dynamics, batch: Batch, x: Tensor, v: Tensor, i: int, sigmas: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw the step, round it, and score what is stored."""
    transition = dynamics.transition(x, v, i, sigmas)
    if transition.std == 0:
        return _stored(transition.mean, batch.store), x.new_zeros(len(batch))
    seeds = [seed_of(seed, "step", i) for seed in batch.seeds]
    fresh = noise(tuple(x.shape[1:]), seeds, x.dtype, x.device)
    after = _stored(transition.mean + transition.std * fresh, batch.store)
    return after, dynamics.log_prob(at_least_float32(after), transition)


def _stored(x: Tensor, store: str) -> Tensor:
    """Round to the stored type. float64 states keep their own under "float32"."""
    return x if x.dtype == torch.float64 and store == "float32" else x.to(STORES[store])
