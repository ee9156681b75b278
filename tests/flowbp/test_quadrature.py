"""Cell averages against closed forms of the integrals."""

import pytest
import torch

from headwater.testing.cached import shifted
from headwater_flowbp.quadrature import (
    hat_rows,
    lagrange_rows,
    leap_rows,
    masses,
    supports,
    uniform_rows,
)

GRID = [float(s) for s in shifted(25)]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(("start", "end"), [(0, 25), (3, 11), (12, 25), (20, 24)])
def test_the_quadrature_is_exact_for_polynomials_below_its_order(order, start, end):
    nodes = supports(start, end, order)
    weights = masses(lagrange_rows(nodes, range(start, end), GRID), range(start, end), GRID)
    for power in range(len(nodes)):
        exact = (GRID[start] ** (power + 1) - GRID[end] ** (power + 1)) / (power + 1)
        got = sum(float(w) * GRID[n] ** power for w, n in zip(weights, nodes, strict=True))
        # float64; the weights alternate in sign and reach a few times the leap
        assert got == pytest.approx(exact, rel=1e-11, abs=1e-12)


def test_each_cell_average_is_the_mean_of_its_polynomial():
    nodes, steps = [2, 7, 12], range(2, 15)
    rows = lagrange_rows(nodes, steps, GRID)
    fine = torch.linspace(0, 1, 20001, dtype=torch.float64)[:-1] + 0.5 / 20000
    for row, node in enumerate(nodes):
        others = [n for n in nodes if n != node]
        for column, step in enumerate(steps):
            x = GRID[step + 1] + fine * (GRID[step] - GRID[step + 1])
            value = torch.ones_like(x)
            for other in others:
                value = value * (x - GRID[other]) / (GRID[node] - GRID[other])
            # midpoint rule with 20,000 points: error of order 1e-10 of the curvature
            assert float(rows[row, column]) == pytest.approx(float(value.mean()), abs=1e-8)


def test_hats_are_the_mean_of_piecewise_linear_interpolation():
    nodes, steps = [1, 4, 9], range(12)
    rows = hat_rows(nodes, steps, GRID)
    fine = torch.linspace(0, 1, 20001, dtype=torch.float64)[:-1] + 0.5 / 20000
    for column, step in enumerate(steps):
        x = GRID[step + 1] + fine * (GRID[step] - GRID[step + 1])
        for row in range(3):
            y = torch.zeros(3, dtype=torch.float64)
            y[row] = 1
            # interpolation over rising sigma: nodes in reverse
            points = torch.tensor([GRID[n] for n in reversed(nodes)], dtype=torch.float64)
            values = y.flip(0)
            index = torch.searchsorted(points, x).clamp(1, 2)
            share = ((x - points[index - 1]) / (points[index] - points[index - 1])).clamp(0, 1)
            mean = float((values[index - 1] * (1 - share) + values[index] * share).mean())
            assert float(rows[row, column]) == pytest.approx(mean, abs=1e-8)


def test_interpolating_rows_sum_to_one_on_every_step():
    steps = range(3, 20)
    for rows in (
        lagrange_rows([3, 9, 15], steps, GRID),
        hat_rows([5, 9, 15], steps, GRID),
        uniform_rows([3, 9], steps),
        leap_rows([3, 9], steps),
    ):
        torch.testing.assert_close(rows.sum(0), torch.ones(17, dtype=torch.float64))


@pytest.mark.parametrize("order", range(1, 6))
def test_supports_start_at_the_start_are_even_and_within(order):
    for start in range(10):
        for end in range(start + 1, 25):
            nodes = supports(start, end, order)
            assert nodes[0] == start
            assert nodes[-1] < end
            assert len(nodes) == min(order, end - start)
            gaps = [b - a for a, b in zip(nodes, nodes[1:], strict=False)]
            assert not gaps or max(gaps) - min(gaps) <= 1
