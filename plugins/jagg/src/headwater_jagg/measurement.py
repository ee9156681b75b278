"""Per-step gradients of one group on one micro-batch, in buffers of their own.

They never reach a parameter's `.grad`. What is kept of them are inner products over the trained
parameters, in float64, enough to fit a basis and to judge one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater import processes, sharding
from headwater.engine import evaluate
from headwater.errors import HeadwaterError
from headwater.types import Group, Rollout
from headwater_jagg.basis import composites
from headwater_jagg.report import compare, inner

Gradient = Sequence[Tensor]


@attrs.frozen(eq=False)
class Part:
    """One group of the trained steps, whether routed or not."""

    position: int
    """Among the groups of the rollout, from the noisy end."""
    steps: tuple[int, ...]
    """(S,)"""
    nodes: tuple[int, ...]
    """(A,) positions among `steps`."""
    basis: Tensor
    """(A, S), float64, in force for this update."""

    @property
    def middle(self) -> tuple[int, ...]:
        """Positions that are no node."""
        return tuple(j for j in range(len(self.steps)) if j not in self.nodes)

    @property
    def grouped(self) -> Group:
        """The group whose nodes alone are evaluated with gradient."""
        return Group(self.steps, tuple(self.steps[k] for k in self.nodes), self.basis)


@attrs.frozen(eq=False)
class Measurement:
    """What one group's gradients say."""

    KK: Tensor
    """(S, A, A) inner products of J_k^T s_j over the nodes k; zero where none was taken."""
    Kt: Tensor
    """(S, A) inner products of J_k^T s_j with J_j^T s_j."""
    likeness: tuple[float, float, float]
    """Cosine, relative error and norm ratio of the gradient by the basis in force to the exact
    one, over the whole group; over its middle steps where the nodes' own were not asked for."""


def work_of(part: Part, *, fit: bool, whole: bool) -> tuple[int, int]:
    """Velocities and backwards per sample of `measure`, with the same arguments.

    For a fit alone, with forward 1 and backward 2, A + (S - A)(3 + 2A) units.
    """
    size, nodes = len(part.steps), len(part.nodes)
    if not fit:
        return size, size + nodes
    return size, (size - nodes) * (1 + nodes) + (nodes if whole else 0)


def measure(
    backbone: Any, rollout: Rollout, part: Part, upstream: Tensor, *, fit: bool, whole: bool
) -> Measurement:
    """Take the gradients of a group step by step.

    upstream: (S, B, *latent). Its scale is irrelevant: every number returned but KK and Kt is
    free of it, and so is their quotient. A power of two brings it near 1, for half types.
    fit: take J_k^T s_j for every step j that is no node, else only the composites.
    whole: include the nodes' own gradients in the likeness; always so without `fit`.
    """
    if any(sharding.is_shard(p) for p in backbone.trainable().values()):
        raise HeadwaterError(
            'jagg cannot measure gradients of sharded weights (basis = "calibrated", routed = '
            '"auto"); take basis = "linear" and a number for routed, train a LoRA, or do not shard'
        )
    s_SB = upstream * _power_of_two(upstream)
    gradients = _Gradients(backbone, rollout, part)
    taken = _by_step(gradients, part, s_SB, whole=whole) if fit else _by_node(gradients, part, s_SB)
    KK, Kt, carried, exact = taken
    # All processes fit and judge the same: sums of products, means of gradients.
    processes.total_(KK)
    processes.total_(Kt)
    processes.average_([*carried, *exact])
    return Measurement(KK, Kt, compare(carried, exact))


@attrs.frozen(eq=False)
class _Gradients:
    """Velocities at the steps of a group and their gradients in the trained parameters."""

    backbone: Any
    rollout: Rollout
    part: Part

    def velocity(self, j: int) -> Tensor:
        """With graph, (B, *latent)."""
        step = self.part.steps[j]
        with torch.enable_grad():
            v: Tensor = evaluate(self.backbone, (step,), self.rollout, (), "stream")[step][1]
        return v

    def of(self, v: Tensor, cotangent: Tensor, *, keep: bool = False) -> list[Tensor]:
        """J^T c, one tensor a parameter; zeros for a parameter the velocity does not use."""
        found = torch.autograd.grad(
            v,
            self.parameters(),
            cotangent.to(v.dtype),
            retain_graph=keep,
            allow_unused=True,
            materialize_grads=True,
        )
        return list(found)

    def parameters(self) -> list[Tensor]:
        """The trained ones."""
        return [p for p in self.backbone.trainable().values() if p.requires_grad]

    def zeros(self) -> list[Tensor]:
        """A buffer to add gradients to."""
        return [torch.zeros_like(p) for p in self.parameters()]


_Taken = tuple[Tensor, Tensor, Gradient, Gradient]
"""KK, Kt, the gradient by the basis, the exact one."""


def _by_step(gradients: _Gradients, part: Part, s_SB: Tensor, *, whole: bool) -> _Taken:
    """The nodes' graphs are kept, one backward a step through each; a step's own at once."""
    size, nodes = len(part.steps), len(part.nodes)
    KK = torch.zeros(size, nodes, nodes, dtype=torch.float64)
    Kt = torch.zeros(size, nodes, dtype=torch.float64)
    carried, exact = gradients.zeros(), gradients.zeros()
    velocities = [gradients.velocity(k) for k in part.nodes]
    for j in part.middle:
        t = gradients.of(gradients.velocity(j), s_SB[j])
        K = [gradients.of(v, s_SB[j], keep=True) for v in velocities]
        for k in range(nodes):
            KK[j, k] = torch.tensor([inner(K[k], other) for other in K], dtype=torch.float64)
            Kt[j, k] = inner(K[k], t)
            _add(carried, K[k], float(part.basis[k, j]))
        _add(exact, t)
    if whole:
        # A node's column is its unit vector: its own gradient is in both sums.
        for k, v in zip(part.nodes, velocities, strict=True):
            own = gradients.of(v, s_SB[k])
            _add(carried, own)
            _add(exact, own)
    return KK, Kt, carried, exact


def _by_node(gradients: _Gradients, part: Part, s_SB: Tensor) -> _Taken:
    """Every step's own gradient, and one composite through each node: one graph at a time."""
    size, nodes = len(part.steps), len(part.nodes)
    carried, exact = gradients.zeros(), gradients.zeros()
    c_AB = composites(part.basis, s_SB)
    for j in range(size):
        v = gradients.velocity(j)
        node = j in part.nodes
        _add(exact, gradients.of(v, s_SB[j], keep=node))
        if node:
            _add(carried, gradients.of(v, c_AB[part.nodes.index(j)]))
    KK = torch.zeros(size, nodes, nodes, dtype=torch.float64)
    return KK, KK[:, 0], carried, exact


def _add(total: list[Tensor], gradient: Gradient, factor: float = 1.0) -> None:
    for sum_, value in zip(total, gradient, strict=True):
        sum_.add_(value, alpha=factor)


def _power_of_two(x: Tensor) -> float:
    """2^k that brings the largest absolute value to between 1/2 and 1; 1 for zeros."""
    largest = x.abs().max().double()
    return 1.0 if float(largest) == 0 else 2.0 ** -int(torch.frexp(largest).exponent)
