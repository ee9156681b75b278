"""The engine: one loop over the groups of a surrogate, for every estimator.

For each group, last to first: the algorithm gives the upstream s = dL/dv of its steps, the
basis turns it into cotangents c on the active evaluations, and these go backward through the
network. An Euler step is the identity plus a velocity, so the gradient at the end of a group
passes unchanged to its start, and `coupling` says how much of J^T c at the input of the
group's first step joins it. The endpoint gradient is known before any network graph exists;
hence each active evaluation can be run and freed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import attrs
import pluggy
import torch
from torch import Tensor

from headwater import hookspecs
from headwater.markers import PROJECT, hookimpl
from headwater.types import Credit, Diagnostics, Group, Rollout, Surrogate, at_least_float32

Mode = Literal["stream", "joint", "fused"]
MODES: tuple[Mode, ...] = ("stream", "joint", "fused")


class Velocity(Protocol):
    """All that the engine asks of a backbone."""

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor: ...


@attrs.frozen(eq=False)
class Engine:
    """Core's own provider of `aggregate` and `backward`."""

    backbone: Velocity
    mode: Mode = attrs.field(default="stream", validator=attrs.validators.in_(MODES))

    @hookimpl
    def aggregate(self, group: Group, upstream: Tensor) -> Tensor:
        """Phi s: (A, S) times (S, B, *latent)."""
        basis = group.basis.to(device=upstream.device, dtype=upstream.dtype)
        return torch.tensordot(basis, upstream, dims=1)

    @hookimpl
    def backward(
        self,
        group: Group,
        rollout: Rollout,
        cotangents: Tensor,
        carried: Tensor | None,
        kept: dict[int, tuple[Tensor, Tensor]],
    ) -> Tensor | None:
        """Backpropagate the cotangents; all three modes accumulate the same gradient."""
        if kept:
            _send([kept[a][1] for a in group.active], list(cotangents))
            first = kept[group.active[0]][0]
        elif self.mode == "stream":
            first = self._one_at_a_time(group, rollout, cotangents)
        else:
            evaluated = evaluate(self.backbone, group.active, rollout, _inputs(group), self.mode)
            _send([evaluated[a][1] for a in group.active], list(cotangents))
            first = evaluated[group.active[0]][0]
        if group.coupling == 0 or carried is None:
            return carried
        gradient = first.grad
        assert gradient is not None
        return carried + group.coupling * gradient

    def _one_at_a_time(self, group: Group, rollout: Rollout, cotangents: Tensor) -> Tensor:
        """Forward, backward, free, one active step at a time."""
        first: Tensor | None = None
        for step, cotangent in zip(group.active, cotangents, strict=True):
            evaluated = evaluate(self.backbone, (step,), rollout, _inputs(group), "stream")
            x, v = evaluated.pop(step)
            _send([v], [cotangent])
            del v
            first = x if first is None else first
        assert first is not None
        return first


def evaluate(
    backbone: Velocity,
    steps: Sequence[int],
    rollout: Rollout,
    differentiable_inputs: Sequence[int],
    mode: Mode,
) -> dict[int, tuple[Tensor, Tensor]]:
    """Evaluate the velocity at cached states, with graph where autograd is on.

    Returns: step: (input, velocity), both (B, *latent). Inputs of `differentiable_inputs`
    are leaves that require a gradient. In mode "fused" the steps share one network forward.
    """
    batch = rollout.batch
    inputs: list[Tensor] = []
    for step in steps:
        x = rollout.state(step).detach()
        inputs.append(x.clone().requires_grad_() if step in differentiable_inputs else x)
    if mode != "fused" or len(steps) == 1:
        outputs = [
            backbone.velocity(x, _sigma(rollout, step, len(x)), batch.conditioning)
            for step, x in zip(steps, inputs, strict=True)
        ]
        return {s: (x, v) for s, x, v in zip(steps, inputs, outputs, strict=True)}
    size = len(inputs[0])
    conditioning = batch.conditioning
    if conditioning is not None:
        conditioning = conditioning.index(list(range(size)) * len(steps))
    sigma = torch.cat([_sigma(rollout, step, size) for step in steps])
    joined = backbone.velocity(torch.cat(inputs), sigma, conditioning)  # (A * B, *latent)
    return {s: (x, v) for s, x, v in zip(steps, inputs, joined.split(size), strict=True)}


def backpropagate(
    backbone: Velocity,
    rollout: Rollout,
    surrogate: Surrogate,
    algorithm: Any,
    carried: Tensor | None = None,
    mode: Mode = "stream",
    credit: Credit | None = None,
) -> Diagnostics:
    """Accumulate the gradient of a surrogate into the parameters' `.grad`.

    backbone: any object with `velocity(x, sigma, conditioning)`.
    rollout: the rollout `surrogate` was built from; `surrogate.rollout` is what is indexed.
    algorithm: an object with a `compute_upstream` hook implementation and an `upstream`.
    carried: (B', *latent) gradient at the endpoint, for an endpoint upstream.
    credit: what the scores said, for a per-step upstream.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(Engine(backbone, mode))
    manager.register(algorithm)
    credit = Credit(endpoint_gradient=carried) if credit is None else credit
    return run_groups(manager.hook, backbone, surrogate, algorithm.upstream, credit, carried, mode)


def run_groups(
    hook: Any,
    backbone: Velocity,
    surrogate: Surrogate,
    upstream: str,
    credit: Credit,
    carried: Tensor | None,
    mode: Mode,
) -> Diagnostics:
    """The loop over the groups, each mathematical part of it a hook."""
    rollout = surrogate.rollout
    fresh = upstream == "per-step" and not surrogate.cached_velocities
    evaluations = active = 0
    carried = None if upstream == "per-step" else carried
    gradient_sync = getattr(backbone, "gradient_sync", None)
    squares: dict[int, Tensor] = {}
    for group in reversed(surrogate.groups):
        if gradient_sync is not None:
            gradient_sync(last=group is surrogate.groups[0])
        velocities, kept = _fresh(backbone, group, rollout, mode) if fresh else (None, {})
        if upstream == "per-step" and not fresh:
            velocities = torch.stack([rollout.velocity(i) for i in group.steps])
        with torch.no_grad():
            s_SB = hook.compute_upstream(
                group=group,
                rollout=rollout,
                credit=credit,
                velocities=velocities,
                carried=carried,
            )
            c_AB = hook.aggregate(group=group, upstream=s_SB)
            for step, c_B in zip(group.active, c_AB, strict=True):
                squares[step] = c_B.square().sum() + squares.get(step, 0.0)
        del velocities
        carried = hook.backward(
            group=group, rollout=rollout, cotangents=c_AB, carried=carried, kept=kept
        )
        evaluations += len(group.steps) if fresh else len(group.active)
        active += len(group.active)
    more, more_backwards = surrogate.measurements
    return Diagnostics(
        forwards=(evaluations + more) * getattr(backbone, "network_forwards", 1),
        backwards=(active + more_backwards) * getattr(backbone, "network_backwards", 1),
        values=dict(surrogate.diagnostics),
        carried=carried,
        squares={step: float(s) for step, s in squares.items() if not s.is_meta},  # a plan's
    )


def endpoint_gradient(losses: Tensor, surrogate: Surrogate, count: int) -> Credit:
    """dL/d endpoint of L = (1/n) sum_b w_b l_b, and the decoder's graph freed.

    losses: (B',) l_b, with autograd history back to `surrogate.endpoint`.
    count: n, all samples of the optimizer step as planned.
    """
    endpoint = surrogate.endpoint
    if endpoint is None or not losses.requires_grad:
        raise ValueError("the losses carry no gradient back to the surrogate's endpoint")
    losses = at_least_float32(losses)
    if surrogate.sample_weights is not None:
        losses = losses * surrogate.sample_weights.to(losses.dtype)
    loss = losses.sum() / count
    (gradient,) = torch.autograd.grad(loss, endpoint)
    return Credit(
        endpoint_gradient=at_least_float32(gradient), loss=float(loss.detach()), count=count
    )


def euler_upstream(group: Group, rollout: Rollout, carried: Tensor) -> Tensor:
    """s_i = -h_i dL/dx_N for every step of a group: (S, B, *latent)."""
    sizes = [rollout.step_size(i) for i in group.steps]
    h_S = torch.tensor(sizes, dtype=carried.dtype, device=carried.device)
    return -h_S.view(-1, *[1] * carried.dim()) * carried


def _fresh(
    backbone: Velocity, group: Group, rollout: Rollout, mode: Mode
) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
    """Velocities of all steps under the current weights; the active ones keep their graph."""
    kept = evaluate(backbone, group.active, rollout, (), mode)
    rest = tuple(i for i in group.steps if i not in group.active)
    with torch.no_grad():
        plain = {i: evaluate(backbone, (i,), rollout, (), mode)[i][1] for i in rest}
    every = [kept[i][1].detach() if i in kept else plain[i] for i in group.steps]
    return torch.stack([at_least_float32(v) for v in every]), kept


def _inputs(group: Group) -> tuple[int, ...]:
    """Only the input of the first step ever needs a gradient, and only under a coupling."""
    return group.steps[:1] if group.coupling != 0 else ()


def _sigma(rollout: Rollout, step: int, size: int) -> Tensor:
    return rollout.sigmas[step].to(rollout.latents.device).expand(size)


def _send(outputs: list[Tensor], cotangents: list[Tensor]) -> None:
    """One autograd.backward. float16 cotangents are scaled, or they would underflow."""
    if all(v.dtype != torch.float16 for v in outputs):
        casts = [c.to(v.dtype) for v, c in zip(outputs, cotangents, strict=True)]
        torch.autograd.backward(outputs, casts)
        return
    largest = max(float(c.abs().max()) for c in cotangents)
    exponent = 0 if largest == 0 else -int(torch.tensor(largest).log2().ceil())
    _send_scaled(outputs, cotangents, 2.0**exponent)


def _send_scaled(outputs: list[Tensor], cotangents: list[Tensor], scale: float) -> None:
    """Multiply by a power of two, go backward into empty gradients, divide, add back."""
    leaves = _leaves(outputs)
    before = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    casts = [(c * scale).to(v.dtype) for v, c in zip(outputs, cotangents, strict=True)]
    torch.autograd.backward(outputs, casts)
    for leaf, old in zip(leaves, before, strict=True):
        if leaf.grad is not None:
            leaf.grad.div_(scale)
            leaf.grad = leaf.grad if old is None else old.add_(leaf.grad)
        else:
            leaf.grad = old


def _leaves(outputs: list[Tensor]) -> list[Tensor]:
    """Every tensor that a backward from `outputs` accumulates into: weights, and inputs."""
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    waiting: list[Any] = [v.grad_fn for v in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        waiting += [after for after, _ in node.next_functions]
    return list(found.values())
