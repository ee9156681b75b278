"""The six hooks. They are the whole mathematics of a run.

Implementations take their arguments by name and may take fewer of them. Each hook but `score`
has exactly one provider in a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.markers import hookspec

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from headwater.protocols import Backbone, Dynamics
    from headwater.types import Batch, Credit, Group, Rollout, Surrogate


@hookspec(firstresult=True)
def sample_rollout(backbone: Backbone, dynamics: Dynamics, batch: Batch) -> Rollout:
    """Draw the samples of a batch and cache their trajectories.

    Called once a micro-batch, without autograd. Core's own provider is a loop over
    `backbone.velocity`; a backbone that samples elsewhere brings its own.

    batch: B samples; `batch.steps` steps, of which `batch.stochastic_steps` follow `dynamics`.
    Returns: Rollout of N steps, its states rounded to `batch.store`.
    """


@hookspec
def score(images: Tensor, batch: Batch) -> Tensor:
    """Judge images. Every reward of the run file has one; they are called one at a time.

    images: (B, 3, H, W) in [0, 1]. Where they require a gradient and the reward declares
    itself differentiable, the scores carry it.
    batch: the B prompts and what belongs to them.
    Returns: (B,), higher is better.
    """


@hookspec(firstresult=True)
def build_surrogate(backbone: Backbone, rollout: Rollout, generator: Generator) -> Surrogate:
    """Choose groups, active steps, bases and couplings for a cached rollout.

    Called once a micro-batch, without autograd. Two calls of one optimizer step and part get
    generators with the same seed, so that a draw never depends on the micro-batch.

    Returns: Surrogate. Building it costs no network forward unless `plan` counts it.
    """


@hookspec(firstresult=True)
def compute_upstream(
    group: Group,
    rollout: Rollout,
    credit: Credit,
    velocities: Tensor | None,
    carried: Tensor | None,
) -> Tensor:
    """Give dL/dv of every step of a group.

    Called once a group, last group first, without autograd.

    velocities: (S, B, *latent) of the group's steps under the current weights, or None where
    the algorithm's upstream is "endpoint".
    carried: (B, *latent) gradient at the end of the group, or None for a per-step upstream.
    Returns: (S, B, *latent), at least float32.
    """


@hookspec(firstresult=True)
def aggregate(group: Group, upstream: Tensor) -> Tensor:
    """Turn the upstream of every step of a group into cotangents on its active evaluations.

    Called once a group, without autograd. Core's own provider returns `group.basis @ upstream`.

    group: Group with S steps and A active ones; basis (A, S).
    upstream: (S, B, *latent), at least float32, dL/dv of each step.
    Returns: (A, B, *latent), dtype of upstream.
    """


@hookspec(firstresult=True)
def backward(
    group: Group,
    rollout: Rollout,
    cotangents: Tensor,
    carried: Tensor | None,
    kept: dict[int, tuple[Tensor, Tensor]],
) -> Tensor | None:
    """Send the cotangents of a group through the network and accumulate its gradients.

    Core's own provider is the engine. Called once a group.

    cotangents: (A, B, *latent), every rescale already in them.
    kept: active step: (input, velocity) with the graph alive, where they were evaluated before
    the upstream was known; else empty.
    Returns: `carried + coupling * J^T c` of the first active step, (B, *latent); `carried`
    itself where the coupling is 0; None for a per-step upstream.
    """


SINGLE_PROVIDER = (
    "sample_rollout",
    "build_surrogate",
    "compute_upstream",
    "aggregate",
    "backward",
)
"""Hooks of which a run has exactly one provider that is not a wrapper."""

NEEDED = {"reward": "score", "algorithm": "compute_upstream", "estimator": "build_surrogate"}
"""Kind: the hook without which a plugin is none of it."""
