"""The basis itself: an Euler upstream sees only a row's integral, so its entries are checked here.

Cell averages by 12-point Gauss-Legendre quadrature, exact for the polynomials at hand; tolerance
1e-11, for products of differences of close sigmas lose a few digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from estimator_runs import build
from joint_graphs import rescale_factor, supports

from headwater.testing.toy_flow import make_batch, roll_out
from headwater_flowbp import Bridge, FreeSurrogate, Lagrange, Sparse
from headwater_flowbp.free import Active

N = 13
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(12)


@pytest.fixture(scope="module")
def rollout(flow):
    return roll_out(flow, make_batch(1, N))


def cell_average(function: Callable[[float], float], high: float, low: float) -> float:
    middle, half = (high + low) / 2, (high - low) / 2
    return sum(w * function(middle + half * p) for p, w in zip(POINTS, WEIGHTS, strict=True)) / 2


def lagrange_basis(points: Sequence[float], a: int) -> Callable[[float], float]:
    others = [p for b, p in enumerate(points) if b != a]
    return lambda s: float(np.prod([(s - p) / (points[a] - p) for p in others]))


def hat_basis(points: Sequence[float], a: int) -> Callable[[float], float]:
    """Linear interpolation of the unit vector, constant beyond the ends."""
    unit = [float(b == a) for b in range(len(points))]
    return lambda s: float(np.interp(-s, [-p for p in points], unit))


def expected_rows(sigmas, nodes, steps, kind) -> torch.Tensor:
    points = [sigmas[i] for i in nodes]
    rows = [
        [cell_average(kind(points, a), sigmas[i], sigmas[i + 1]) for i in steps]
        for a in range(len(nodes))
    ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("rescale", [0.0, 0.6])
def test_lagrange_rows_are_cell_averages_with_the_factor_and_a_quarter_after_the_start(
    flow, rollout, order, rescale
) -> None:
    sigmas = rollout.sigmas.tolist()
    for seed in range(4):
        estimator = Lagrange(order=order, rescale=rescale, active="all", sampler="uniform")
        half = Lagrange(order=order, rescale=rescale, active="midpoint", sampler="uniform")
        for group, cut in zip(
            build(estimator, flow, rollout, seed).groups,
            build(half, flow, rollout, seed).groups,
            strict=True,
        ):
            nodes = supports(group.steps[0], group.steps[-1] + 1, order)
            rows = expected_rows(sigmas, nodes, group.steps, lagrange_basis)
            h = [sigmas[i] - sigmas[i + 1] for i in group.steps]
            w = (rows @ torch.tensor(h, dtype=torch.float64)).tolist()
            small = torch.tensor([1.0] + [0.25] * (len(nodes) - 1)).view(-1, 1)
            assert (group.basis - small * rows).abs().max() < 1e-11, "all active: f is 1"
            factor = rescale_factor(rescale, w, w[:2])
            assert (cut.basis - factor * (small * rows)[:2]).abs().max() < 1e-11


@pytest.mark.parametrize("split", ["none", "uniform"])
def test_hat_rows_are_cell_averages_of_linear_interpolation(flow, rollout, split) -> None:
    sigmas = rollout.sigmas.tolist()
    estimator = FreeSurrogate(active=Active(count=5, late_bias=0.0), weights="hat", split=split)
    for seed in range(5):
        for group in build(estimator, flow, rollout, seed).groups:
            rows = expected_rows(sigmas, group.active, group.steps, hat_basis)
            assert (group.basis - rows).abs().max() < 1e-11
            assert (group.basis.sum(0) - 1).abs().max() < 1e-11


def test_uniform_rows_share_every_step_alike(flow, rollout) -> None:
    for group in build(Lagrange(weights="uniform", rescale=0.0), flow, rollout, 3).groups:
        count = min(3, len(group.steps))
        row = torch.full((len(group.steps),), 1 / count, dtype=torch.float64)
        assert torch.allclose(group.basis[0], row, rtol=1e-14)
        assert all(torch.allclose(other, row / 4, rtol=1e-14) for other in group.basis[1:])


@pytest.mark.parametrize("estimator", [Sparse(k=4, rescale=0.5), Bridge(k=5, rescale=0.5)])
def test_euler_rows_hold_one_factor_at_their_own_step(flow, rollout, estimator) -> None:
    sigmas = rollout.sigmas.tolist()
    groups = build(estimator, flow, rollout, 2).groups
    active = [a for group in groups for a in group.active]
    h = [sigmas[a] - sigmas[a + 1] for a in active]
    factor = rescale_factor(0.5, [1.0], h)
    assert factor > 1.1
    for group in groups:
        expected = torch.zeros(len(group.active), len(group.steps), dtype=torch.float64)
        for row, a in enumerate(group.active):
            expected[row, group.steps.index(a)] = factor
        assert torch.allclose(group.basis, expected, rtol=1e-12)
