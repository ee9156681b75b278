"""Groups, weights and bases against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from headwater_jagg.basis import (
    alphas,
    composites,
    cut,
    dropped_basis,
    fit_basis,
    linear_basis,
    nearest_basis,
    node_positions,
    routed_count,
    solve_basis,
    summed_basis,
)
from headwater_jagg.report import chord_distance, compare

TIMES = [1.0, 0.8, 0.7, 0.2, 0.0]


def test_trained_steps_are_sorted_and_cut_from_the_noisy_end() -> None:
    assert cut([9, 0, 3, 4, 12, 7], 4) == ((0, 3, 4, 7), (9, 12))
    assert cut([2, 1], 1) == ((1,), (2,))
    assert cut([], 4) == ()
    with pytest.raises(ValueError, match="at least 1"):
        cut([1], 0)


@pytest.mark.parametrize(
    ("groups", "fraction", "routed"),
    [
        (5, 0.6, 3),
        (4, 0.6, 2),
        (3, 0.6, 2),
        (1, 0.6, 1),
        (1, 0.4, 0),
        (5, 0.5, 3),
        (5, 0.1, 1),
        (5, 0.0, 0),
        (7, 1.0, 7),
    ],
)
def test_half_a_group_is_rounded_up(groups, fraction, routed) -> None:
    assert routed_count(groups, fraction) == routed


def test_alpha_is_linear_in_time_and_not_in_the_index() -> None:
    expected = torch.tensor([0.0, 0.2, 0.3, 0.8, 1.0], dtype=torch.float64)
    torch.testing.assert_close(alphas(TIMES), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(
        alphas([1000, 983, 966, 947, 927])[1], torch.tensor(17 / 73).double()
    )
    assert alphas(torch.tensor([0.3])).tolist() == [0.0]
    with pytest.raises(ValueError, match="time"):
        alphas([0.5, 0.5])


def test_alpha_between_inner_nodes_leaves_zero_to_one_outside_them() -> None:
    expected = torch.tensor([-1 / 3, 0.0, 1 / 6, 1.0, 4 / 3], dtype=torch.float64)
    torch.testing.assert_close(alphas(TIMES, (1, 3)), expected, rtol=0, atol=1e-15)


def test_the_papers_basis_holds_one_minus_alpha_and_alpha() -> None:
    alpha = alphas(TIMES)
    assert torch.equal(linear_basis(TIMES), torch.stack([1 - alpha, alpha]))
    assert torch.equal(linear_basis(TIMES, (0, 4)), linear_basis(TIMES))


def test_three_nodes_interpolate_piecewise_and_extrapolate_outside() -> None:
    found = linear_basis(TIMES, (1, 2, -2))
    expected = torch.tensor(
        [[3.0, 1, 0, 0, 0], [-2, 0, 1, 0, -0.4], [0, 0, 0, 1, 1.4]], dtype=torch.float64
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    function = torch.tensor(TIMES, dtype=torch.float64) * 3 - 1
    torch.testing.assert_close(function[[1, 2, 3]] @ found, function, rtol=0, atol=1e-14)


def test_one_node_takes_every_step() -> None:
    assert linear_basis(TIMES, (2,)).tolist() == [[1.0] * 5]
    assert nearest_basis(TIMES, (2,)).tolist() == [[1.0] * 5]


def test_the_nearest_node_is_nearest_in_time_and_a_tie_goes_to_the_noisier() -> None:
    assert nearest_basis(TIMES).tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert nearest_basis([1.0, 0.5, 0.0]).tolist() == [[1, 1, 0], [0, 0, 1]]
    assert nearest_basis(TIMES, (0, 2)).tolist() == [[1, 0, 0, 0, 0], [0, 1, 1, 1, 1]]


@pytest.mark.parametrize("basis", [linear_basis, nearest_basis])
def test_groups_of_one_and_two_are_the_identity(basis) -> None:
    assert torch.equal(basis([0.4]), torch.eye(1, dtype=torch.float64))
    assert torch.equal(basis([0.4, 0.1]), torch.eye(2, dtype=torch.float64))


def test_the_ablations_drop_or_repeat_the_middle() -> None:
    assert dropped_basis(4).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert dropped_basis(4, (1, 2)).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert summed_basis(4).tolist() == [[1] * 4, [1] * 4]


@pytest.mark.parametrize("nodes", [(0, 5), (-6, 1), (2, 1), (1, 1), (-1, 0), ()])
def test_nodes_that_do_not_fit_are_refused(nodes) -> None:
    with pytest.raises(ValueError, match="nodes"):
        linear_basis(TIMES, nodes)


@pytest.mark.parametrize(
    ("nodes", "window", "size", "positions"),
    [
        ((0, -1), 4, 4, (0, 3)),
        ((0, -1), 4, 3, (0, 2)),
        ((0, -1), 4, 2, (0, 1)),
        ((0, -1), 4, 1, (0,)),
        ((1, 6), 8, 8, (1, 6)),
        ((1, 6), 8, 5, (1, 3)),
        ((1, 6), 8, 3, (0, 2)),
        ((0, 1), 8, 3, (0, 1)),
        ((6, 7), 8, 3, (1, 2)),
        ((0, 1, 2), 8, 4, (0, 1, 2)),
        ((5, 6, 7), 8, 4, (1, 2, 3)),
        ((2,), 5, 1, (0,)),
    ],
)
def test_nodes_of_a_shorter_group_keep_their_relative_places(
    nodes, window, size, positions
) -> None:
    assert node_positions(nodes, window, size) == positions


def test_composites_keep_shape_and_dtype_of_the_upstream() -> None:
    s = torch.arange(5 * 2 * 3, dtype=torch.float32).view(5, 2, 3)
    base, corr = composites(linear_basis(TIMES), s)
    expected = sum(a * s[j] for j, a in enumerate([1.0, 0.8, 0.7, 0.2, 0.0]))
    torch.testing.assert_close(base, expected)
    torch.testing.assert_close(corr, s.sum(0) - expected)
    assert corr.dtype == torch.float32


def test_a_fit_finds_weights_that_made_the_step() -> None:
    """The ridge of 1e-6 bends weights of order 1 by about 1e-6 times the condition number."""
    K = torch.randn(2, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t = 0.3 * K[0] - 1.7 * K[1]
    found = solve_basis(K @ K.T, K @ t)
    torch.testing.assert_close(found, torch.tensor([0.3, -1.7]).double(), rtol=1e-4, atol=0)
    expected = torch.linalg.inv(K @ K.T + 0.1 * (K @ K.T).trace() * torch.eye(2)) @ (K @ t)
    torch.testing.assert_close(solve_basis(K @ K.T, K @ t, 0.1), expected)


def test_a_fit_keeps_nodes_as_units_and_silent_steps_as_they_were() -> None:
    old = linear_basis(TIMES)
    K = torch.randn(5, 2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t = torch.randn(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    K[2], t[2] = 0, 0
    KK, Kt = K @ K.mT, torch.einsum("sap,sp->sa", K, t)
    found = fit_basis(old, (0, -1), KK, Kt)
    assert found[:, 0].tolist() == [1, 0]
    assert found[:, 4].tolist() == [0, 1]
    assert torch.equal(found[:, 2], old[:, 2])
    for j in (1, 3):
        torch.testing.assert_close(found[:, j], solve_basis(KK[j], Kt[j]), rtol=1e-14, atol=0)
    assert torch.equal(old, linear_basis(TIMES)), "the old basis is not written to"


def test_two_gradients_are_compared_over_all_their_tensors() -> None:
    exact = [torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])]
    jagg = [torch.tensor([0.0]), torch.tensor([[0.0, 8.0]])]
    cosine, error, ratio = compare(jagg, exact)
    assert cosine == pytest.approx(0.8, rel=1e-14)
    assert error == pytest.approx(1.0, rel=1e-14)
    assert ratio == pytest.approx(1.6, rel=1e-14)
    nothing = [torch.zeros(1), torch.zeros(1, 2)]
    assert all(number != number for number in compare(jagg, nothing))
    assert compare(nothing, exact)[1:] == (1.0, 0.0)


def test_the_chord_distance_is_in_units_of_the_chord() -> None:
    states = torch.zeros(3, 2, 2, dtype=torch.float64)
    states[2, 0, 0], states[2, 1, 1] = 4.0, 2.0
    states[1, 0] = torch.tensor([3.0, 2.0])
    states[1, 1] = torch.tensor([0.0, 1.5])
    found = chord_distance(states, [1.0, 0.25, 0.0])
    expected = torch.tensor([[0, 0], [0.5, 0], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
