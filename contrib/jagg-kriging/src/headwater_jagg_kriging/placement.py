"""Where the nodes of a group stand and how its steps are spread over them, as functions of numbers.

The policy gradient of a group of S steps is `sum_j J_j^T s_j`; JAGG (arXiv 2607.17572) puts
`sum_k basis[k, j] J_k`, over A nodes k, in the place of J_j. Here the Jacobians along a rollout are
an intrinsic random process: half the expected squared difference of two of them, their
semivariogram, is a power of the expected squared distance of their states,

    gamma_jk = d_jk^H,    d_jk = 2 (sigma_j - sigma_k)^2 + sum of std_i^2 over the steps between,

the path's own length and the noise on it. The schedule alone says all of it. The expected squared
error of a column phi that sums to 1 is `2 sum_k phi_k gamma_jk - sum_kl phi_k phi_l gamma_kl`
(kriging, Matheron 1963). Upstreams of different steps hold independent noise, so that the errors of
a group's steps add. Everything is float64.

    S  steps of a group      A  nodes, positions among the S steps, increasing
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

import torch
from torch import Tensor

SPEED = 2.0
"""Mean square of a velocity: eps - x_data, both of unit variance an element."""
CHOICES = 10_000
"""Choices of nodes that are tried at most, about a second."""


def distances(sigmas: Sequence[float], stds: Sequence[float], steps: Sequence[int]) -> Tensor:
    """d_jk, (S, S): expected squared distance an element of the states of two steps.

    sigmas: (N + 1,). stds: (N,), full standard deviation of each step, 0 for one without noise.
    """
    sigma_S = _float64(sigmas)[list(steps)]
    noise = torch.cat([torch.zeros(1, dtype=torch.float64), _float64(stds).square().cumsum(0)])
    noise_S = noise[list(steps)]
    path = SPEED * (sigma_S[:, None] - sigma_S).square()
    return path + (noise_S[:, None] - noise_S).abs()


def clamped_basis(sigmas: Sequence[float], nodes: Sequence[int]) -> Tensor:
    """(A, S): linear in sigma between two nodes, the nearest node's beyond the outer ones.

    sigmas: (S,) falling, of the group's steps.
    """
    sigma_S = _float64(sigmas)
    rows = torch.zeros(len(nodes), len(sigma_S), dtype=torch.float64)
    if len(nodes) == 1:
        return rows + 1
    at = sigma_S[list(nodes)]
    right = torch.searchsorted(-at, -sigma_S).clamp(1, len(nodes) - 1)
    left = right - 1
    share = ((sigma_S - at[right]) / (at[left] - at[right])).clamp(0, 1)
    columns = torch.arange(len(sigma_S))
    rows[left, columns] = share
    rows[right, columns] = 1 - share
    return rows


def kriging_basis(gamma: Tensor, nodes: Sequence[int]) -> Tensor:
    """(A, S): the columns of least expected error among those that sum to 1.

    gamma: (S, S) semivariogram. A node's own column is its unit vector.
    """
    at, count = list(nodes), len(nodes)
    system = torch.ones(count + 1, count + 1, dtype=torch.float64)
    system[:count, :count] = gamma[at][:, at]
    system[count, count] = 0
    right = torch.ones(count + 1, gamma.shape[1], dtype=torch.float64)
    right[:count] = gamma[at]
    solved: Tensor = torch.linalg.solve(system, right)
    return solved[:count]


def expected_errors(gamma: Tensor, nodes: Sequence[int], basis: Tensor) -> Tensor:
    """E |J_j - sum_k basis[k, j] J_k|^2 of every step, (S,), for columns that sum to 1."""
    at = list(nodes)
    return (basis * (2 * gamma[at] - gamma[at][:, at] @ basis)).sum(dim=0)


@lru_cache(maxsize=256)
def placed(
    sigmas: tuple[float, ...],
    stds: tuple[float, ...],
    weights: tuple[float, ...],
    steps: tuple[int, ...],
    count: int,
    power: float,
    kind: str,
) -> tuple[tuple[int, ...], Tensor]:
    """The nodes of least expected error of the group's gradient, and their basis (A, S).

    The error of a step counts by its weight, the expected square of its upstream. Of two choices
    that are alike the one with earlier nodes is taken. A group of no more than `count` steps has a
    node at every step.

    sigmas: (N + 1,). stds, weights: (N,). power: H. kind: "linear" or "kriging". ValueError where
    there are more than `CHOICES`.
    """
    size = len(steps)
    if size <= count:
        return tuple(range(size)), torch.eye(size, dtype=torch.float64)
    if comb(size, count) > CHOICES:
        raise ValueError(
            f"{count} nodes among the {size} steps of a group can be chosen in "
            f"{comb(size, count):,} ways, at most {CHOICES:,} are tried; expected a smaller window "
            f"or fewer nodes"
        )
    gamma = distances(sigmas, stds, steps) ** power
    weight_S = _float64(weights)[list(steps)]
    own = [sigmas[i] for i in steps]
    best, found = float("inf"), None
    for nodes in combinations(range(size), count):
        basis = kriging_basis(gamma, nodes) if kind == "kriging" else clamped_basis(own, nodes)
        error = float(weight_S @ expected_errors(gamma, nodes, basis))
        if error < best * (1 - 1e-12):
            best, found = error, (nodes, basis)
    assert found is not None
    return found


def _float64(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
