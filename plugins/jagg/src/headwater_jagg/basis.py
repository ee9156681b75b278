"""JAGG's groups, weights and bases, as functions of numbers (arXiv 2607.17572).

The policy gradient of a group of S steps is `sum_j J_j^T s_j`: J_j is the Jacobian of the velocity
at step j in the weights, s_j the upstream dL/dv_j. JAGG takes J_j for a combination of the
Jacobians of A nodes, `J_j = sum_k basis[k, j] J_k`; then the gradient is
`sum_k J_k^T (sum_j basis[k, j] s_j)`, with A backwards instead of S.

    S  steps of a group      A  nodes, the steps that are evaluated with gradient
    times  (S,) falling, in any unit: sigmas, or a network's timesteps
    nodes  positions among the S steps, increasing; a negative one counts from the end

Weights and bases are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

Times = Tensor | Sequence[float]
ENDS = (0, -1)


def cut(trained_steps: Sequence[int], window: int) -> tuple[tuple[int, ...], ...]:
    """Sort the trained steps and cut them into groups of `window`, from the noisy end.

    They need not be neighbours. The last group may be shorter.
    """
    if window < 1:
        raise ValueError(f"expected a window of at least 1 step, got {window}")
    steps = sorted(trained_steps)
    return tuple(tuple(steps[i : i + window]) for i in range(0, len(steps), window))


def routed_count(groups: int, fraction: float) -> int:
    """How many groups, from the noisy end, are routed: floor(fraction * groups + 1/2)."""
    return math.floor(fraction * groups + 0.5)


def node_positions(nodes: Sequence[int], window: int, size: int) -> tuple[int, ...]:
    """Where the nodes of a group of `window` steps stand in one of `size` steps.

    Positions scale with the size, so that ends stay ends; two that would fall on one step move
    to neighbours. A group of no more steps than nodes has a node at every step.
    """
    if size <= len(nodes):
        return tuple(range(size))
    whole = resolved(nodes, window)
    if size == window:
        return whole
    out: list[int] = []
    for i, node in enumerate(whole):
        scaled = math.floor(node * (size - 1) / max(window - 1, 1) + 0.5)
        least = out[-1] + 1 if out else 0
        out.append(min(max(scaled, least), size - (len(whole) - i)))
    return tuple(out)


def resolved(nodes: Sequence[int], size: int) -> tuple[int, ...]:
    """Nodes as positions from 0; both ends of a group of one are one node.

    Raises ValueError for a node outside the group, or nodes that do not increase.
    """
    if size == 1 and tuple(nodes) == ENDS:
        return (0,)
    if not nodes or not all(-size <= node < size for node in nodes):
        raise ValueError(f"expected nodes from {-size} to {size - 1}, got {list(nodes)}")
    positions = tuple(node % size for node in nodes)
    if list(positions) != sorted(set(positions)):
        raise ValueError(f"nodes must increase, got {list(nodes)} in a group of {size}")
    return positions


def alphas(times: Times, nodes: tuple[int, int] = ENDS) -> Tensor:
    """alpha_j = (t_0 - t_j) / (t_0 - t_last), (S,): 0 at the first node and 1 at the last.

    A group of one has alpha 0. Raises ValueError where two nodes share one time.
    """
    t_S = _as_times(times)
    if len(t_S) == 1:
        return torch.zeros(1, dtype=torch.float64)
    first, last = (t_S[i] for i in resolved(nodes, len(t_S)))
    if first == last:
        raise ValueError(f"both nodes have the time {float(first)}")
    return (first - t_S) / (first - last)


def linear_basis(times: Times, nodes: Sequence[int] = ENDS) -> Tensor:
    """(A, S): Jacobians linear in t between the nodes.

    With nodes at both ends it is the paper's, with rows 1 - alpha and alpha. A step between two
    nodes is interpolated from these two; one outside all nodes is extrapolated from the two
    nearest, which makes a weight negative. One node takes every step whole.
    """
    t_S = _as_times(times)
    positions = resolved(nodes, len(t_S))
    basis = torch.zeros(len(positions), len(t_S), dtype=torch.float64)
    if len(positions) == 1:
        return basis + 1
    segments = list(pairwise(positions))
    weights = torch.stack([alphas(t_S, pair) for pair in segments])  # (A - 1, S)
    for j in range(len(t_S)):
        k = min(sum(j > end for end in positions[1:]), len(segments) - 1)
        basis[k, j], basis[k + 1, j] = 1 - weights[k, j], weights[k, j]
    return basis


def nearest_basis(times: Times, nodes: Sequence[int] = ENDS) -> Tensor:
    """(A, S): each step goes whole to the node nearest in t, to the noisier one if two are."""
    t_S = _as_times(times)
    positions = list(resolved(nodes, len(t_S)))
    distance = (t_S[positions].unsqueeze(1) - t_S).abs()  # (A, S)
    return torch.nn.functional.one_hot(distance.argmin(dim=0), len(positions)).T.double()


def dropped_basis(size: int, nodes: Sequence[int] = ENDS) -> Tensor:
    """(A, S) of the ablation "none": a node carries its own upstream, the others are dropped."""
    positions = list(resolved(nodes, size))
    return torch.eye(size, dtype=torch.float64)[positions]


def summed_basis(size: int, nodes: Sequence[int] = ENDS) -> Tensor:
    """(A, S) of the ablation "sum": every node carries the upstream of all steps."""
    return torch.ones(len(resolved(nodes, size)), size, dtype=torch.float64)


def composites(basis: Tensor, upstream: Tensor) -> Tensor:
    """c_k = sum_j basis[k, j] s_j: (A, S) and (S, B, *latent) to (A, B, *latent).

    With the paper's basis these are s_base and s_corr. dtype and device of the upstream.
    """
    return torch.tensordot(basis.to(upstream), upstream, dims=1)


def solve_basis(KK: Tensor, Kt: Tensor, ridge: float = 1e-6) -> Tensor:
    """Weights of one step over the nodes by least squares, (A,).

    They minimise `|sum_k w_k K_k - t|^2 + ridge * trace(KK) * |w|^2`, with K_k = J_k^T s_j the
    step's upstream sent through node k, and t = J_j^T s_j through the step itself.

    KK: (A, A) inner products K_k K_l. Kt: (A,) inner products K_k t.
    """
    KK, Kt = KK.double(), Kt.double()
    regular = ridge * KK.trace() * torch.eye(len(KK), dtype=KK.dtype, device=KK.device)
    return torch.linalg.solve(KK + regular, Kt)


def fit_basis(
    old: Tensor, nodes: Sequence[int], KK: Tensor, Kt: Tensor, ridge: float = 1e-6
) -> Tensor:
    """The basis whose combination of node gradients is nearest to every step's own, (A, S).

    A node's column is its unit vector. A step without upstream (KK zero) keeps its old column.

    old: (A, S). KK: (S, A, A) and Kt: (S, A), see `solve_basis`; those of nodes are not read.
    """
    positions = resolved(nodes, old.shape[1])
    basis = old.double().clone()
    for j in range(basis.shape[1]):
        if j in positions:
            basis[:, j] = torch.eye(len(positions), dtype=torch.float64)[positions.index(j)]
        elif float(KK[j].trace()) > 0:
            basis[:, j] = solve_basis(KK[j], Kt[j], ridge)
    return basis


def _as_times(times: Times) -> Tensor:
    # A list would pass through torch's default float32.
    given = times.tolist() if isinstance(times, Tensor) else times
    t_S = torch.tensor(given, dtype=torch.float64)
    if t_S.dim() != 1 or len(t_S) == 0:
        raise ValueError(f"expected times of shape (S,), got {tuple(t_S.shape)}")
    return t_S
