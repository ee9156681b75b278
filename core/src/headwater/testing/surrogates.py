"""What makes a surrogate valid, and how two of them differ."""

from __future__ import annotations

import torch
from torch import Tensor

from headwater.types import Rollout, Surrogate

TIGHT = 1e-6
"""Relative; a posterior mean of float64 states is formed from float64 numbers."""


def fault(found: Surrogate, rollout: Rollout, plugin: object) -> str:
    """What is wrong with a surrogate; an empty text for nothing."""
    upstream = getattr(plugin, "upstream", "")
    size = len(found.rollout.batch)
    if not found.groups:
        return "it has no group: nothing would be trained"
    if upstream == "per-step":
        if found.endpoint is not None or found.sample_weights is not None:
            return "a per-step upstream has neither endpoint nor sample weights; give None"
        outside = {i for g in found.groups for i in g.steps} - {*rollout.batch.trained_steps}
        if outside:
            return f"steps {sorted(outside)} are not among the rollout's trained steps"
    elif found.endpoint is None:
        return "an endpoint upstream needs an endpoint; give the latent that is scored"
    elif found.endpoint.shape != (size, *rollout.latents.shape[2:]):
        return f"the endpoint has shape {tuple(found.endpoint.shape)}, its rollout has {size} rows"
    elif size % len(rollout.batch):
        return f"its rollout has {size} samples, no multiple of the {len(rollout.batch)} given"
    return _groups_fault(found, upstream) or _weights_fault(found, size) or _history(found)


def _groups_fault(found: Surrogate, upstream: str) -> str:
    last = -1
    for k, group in enumerate(found.groups):
        name = f"group {k} (steps {group.steps}, active {group.active})"
        if group.steps[0] <= last:
            return f"{name} begins before the end of the one before it; order them from the noise"
        last = group.steps[-1]
        if last >= found.rollout.steps or group.steps[0] < 0:
            return f"{name} is outside of the {found.rollout.steps} steps of its rollout"
        basis = group.basis
        if tuple(basis.shape) != (len(group.active), len(group.steps)):
            return f"{name}: the basis is {tuple(basis.shape)}, expected (active, steps)"
        if not basis.is_floating_point() or basis.element_size() < 4:
            return f"{name}: the basis is {basis.dtype}; at least float32"
        if not bool(basis.isfinite().all()):
            return f"{name}: the basis is not finite"
        if not 0 <= group.coupling <= 1:
            return f"{name}: coupling {group.coupling} is not in 0 to 1"
        if group.coupling and group.active[0] != group.steps[0]:
            return f"{name}: coupling {group.coupling} needs the first step active"
        if group.coupling and upstream == "per-step":
            return f"{name}: a per-step upstream carries nothing; coupling must be 0"
    return ""


def _weights_fault(found: Surrogate, size: int) -> str:
    weights = found.sample_weights
    if weights is None:
        return ""
    if weights.shape != (size,):
        return f"sample_weights has shape {tuple(weights.shape)}, expected ({size},)"
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        return f"sample_weights must be finite and not negative, got {weights.tolist()}"
    return ""


def _history(found: Surrogate) -> str:
    tensors = [("endpoint", found.endpoint), ("sample_weights", found.sample_weights)]
    tensors += [("basis", group.basis) for group in found.groups]
    for name, tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            return f"{name} carries autograd history; a surrogate is built without"
    return ""


def endpoint_fault(found: Surrogate, rollout: Rollout, declared: str) -> str:
    """Why an endpoint is not the declared one; empty if it is."""
    end = found.endpoint
    if declared == "none":
        return "" if end is None else 'it declares endpoint = "none" and gives one'
    if end is None:
        return f"it declares endpoint = {declared!r} and gives none"
    image, size = rollout.state(rollout.steps), len(rollout.batch)
    if declared == "sample":
        same = end.shape == image.shape and torch.equal(end, image)
        return "" if same else "the endpoint is not the cached sample, rollout.state(N)"
    if declared == "posterior-mean":
        means = [
            rollout.state(i) - float(rollout.sigmas[i]) * rollout.velocity(i)
            for i in range(rollout.steps)
        ]
        near = any(_near(end, mean) for mean in means)
        return "" if near else "the endpoint is x_i - sigma_i v_i of no step i"
    if not torch.equal(end[:size], image):
        return "the first B rows of the endpoint are not the cached samples"
    copies = end[size:].split(size)
    again = any(_near(copy, image) for copy in copies)
    return "its re-noised copies are the samples themselves" if again else ""


def difference(one: Surrogate, other: Surrogate) -> str:
    """How two surrogates of one rollout differ; empty if they are the same bits."""
    plans = [[(g.steps, g.active, g.coupling) for g in s.groups] for s in (one, other)]
    if plans[0] != plans[1]:
        return f"two builds give groups {plans[0]} and {plans[1]}"
    pairs = zip(one.groups, other.groups, strict=True)
    if not all(torch.equal(a.basis, b.basis) for a, b in pairs):
        return "two builds give other bases"
    for name in ("endpoint", "sample_weights"):
        if not _same(getattr(one, name), getattr(other, name)):
            return f"two builds give another {name}"
    return ""


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=TIGHT, atol=TIGHT)
