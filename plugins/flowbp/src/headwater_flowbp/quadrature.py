"""How steps are spread over active ones: rows of a basis, as cell averages over sigma.

A row's entry for step i is the average of a basis function over [sigmas[i+1], sigmas[i]], so
that the entries times the step sizes sum to the function's integral: the quadrature weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def supports(start: int, end: int, order: int) -> list[int]:
    """Up to `order` steps, even by index over start .. end-1, the start always among them."""
    last = end - 1
    if end - start <= order:
        return list(range(start, end))
    if order == 1:
        return [start]
    return [start + round(p * (last - start) / (order - 1)) for p in range(order)]


def lagrange_rows(nodes: Sequence[int], steps: Sequence[int], sigmas: Sequence[float]) -> Tensor:
    """Cell averages of the Lagrange polynomials through the sigmas of `nodes`: (nodes, S)."""
    origin = sigmas[nodes[0]]  # powers of small differences keep their digits
    points = [sigmas[node] - origin for node in nodes]
    rows = []
    for a, point in enumerate(points):
        coefficients = [1.0]
        for b, other in enumerate(points):
            if b != a:
                scale = point - other
                shifted = [0.0, *coefficients]
                coefficients = [
                    (up - other * low) / scale
                    for up, low in zip(shifted, [*coefficients, 0.0], strict=True)
                ]
        rows.append([_average(coefficients, sigmas, i, origin) for i in steps])
    return torch.tensor(rows, dtype=torch.float64)


def _average(
    coefficients: Sequence[float], sigmas: Sequence[float], step: int, origin: float
) -> float:
    """Average of sum_p c_p x^p over one cell, x = sigma - origin."""
    high, low = sigmas[step] - origin, sigmas[step + 1] - origin
    integral = sum(
        c * (high ** (p + 1) - low ** (p + 1)) / (p + 1) for p, c in enumerate(coefficients)
    )
    return integral / (high - low)


def uniform_rows(nodes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Every node carries the same share of every step: (nodes, S)."""
    return torch.full((len(nodes), len(steps)), 1 / len(nodes), dtype=torch.float64)


def unit_rows(nodes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Every node carries its own step: (nodes, S)."""
    column = {step: i for i, step in enumerate(steps)}
    rows = torch.zeros(len(nodes), len(steps), dtype=torch.float64)
    for row, node in enumerate(nodes):
        rows[row, column[node]] = 1
    return rows


def leap_rows(nodes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Every node carries the steps from itself up to the next node: (nodes, S)."""
    rows = torch.zeros(len(nodes), len(steps), dtype=torch.float64)
    for row, (node, after) in enumerate(zip(nodes, [*nodes[1:], steps[-1] + 1], strict=True)):
        for column, step in enumerate(steps):
            rows[row, column] = float(node <= step < after)
    return rows


def hat_rows(nodes: Sequence[int], steps: Sequence[int], sigmas: Sequence[float]) -> Tensor:
    """Cell averages of piecewise linear hats through the nodes, constant beyond the ends.

    Each cell lies between two neighbouring nodes, so its average is the value at its middle.
    """
    rows = torch.zeros(len(nodes), len(steps), dtype=torch.float64)
    for column, step in enumerate(steps):
        middle = (sigmas[step] + sigmas[step + 1]) / 2
        before = [row for row, node in enumerate(nodes) if node <= step]
        after = [row for row, node in enumerate(nodes) if node > step]
        if not before or not after:
            rows[before[-1] if before else after[0], column] = 1
            continue
        left, right = sigmas[nodes[before[-1]]], sigmas[nodes[after[0]]]
        share = (left - middle) / (left - right)
        rows[before[-1], column], rows[after[0], column] = 1 - share, share
    return rows


def masses(rows: Tensor, steps: Sequence[int], sigmas: Sequence[float]) -> Tensor:
    """Integral of each row's function over the segment, sum_i row_i h_i: (rows,)."""
    sizes = [sigmas[i] - sigmas[i + 1] for i in steps]
    return rows @ torch.tensor(sizes, dtype=torch.float64)


def miss(
    start: Tensor, weights: Iterable[float], velocities: Iterable[Tensor], end: Tensor
) -> Tensor:
    """Mean absolute difference of `start - sum w v` and `end`: (B,). Tensors are (B, *latent)."""
    predicted = start
    for weight, velocity in zip(weights, velocities, strict=True):
        predicted = predicted - weight * velocity
    return (predicted - end).abs().flatten(1).mean(dim=1)


def similarity_weights(distances: Sequence[Tensor], tau: float) -> Tensor:
    """1 / sum max(d, tau) over the segments: (B,)."""
    return 1 / torch.stack([d.clamp(min=tau) for d in distances]).sum(dim=0)
