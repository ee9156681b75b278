"""Draws: their ranges, their probabilities, and that they do not depend on the batch."""

import math

import pytest
import torch

from headwater_flowbp.samplers import DIRICHLET, _gamma, draw_pair, evenly, late_biased, split_count

KINDS = ["uniform", "dirichlet", "midpoint", "midpoint-j"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", [1.0, 0.7, 0.4])
def test_pairs_are_ordered_and_within_the_trainable_tail(kind, tail):
    generator = torch.Generator().manual_seed(1)
    for n in range(2, 51):
        first = n - max(1, round(tail * n))
        if n - first < (3 if kind == "dirichlet" else 2):
            with pytest.raises(ValueError, match="needs at least"):
                draw_pair(kind, n, tail, 0, generator)
            continue
        for _ in range(20):
            k, j = draw_pair(kind, n, tail, 0, generator)
            assert first <= k < j < n


def test_the_cap_limits_the_reverse_index_of_j_and_lengthens_the_noise_side():
    plain, capped = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    moved = 0
    for _ in range(300):
        k, j = draw_pair("dirichlet", 25, 1.0, 0, plain)
        k_cap, j_cap = draw_pair("dirichlet", 25, 1.0, 10, capped)
        assert 25 - j_cap <= 10
        assert j_cap - k_cap == j - k
        assert j_cap - j == max(0, (25 - j) - 10)
        moved += j_cap != j
    assert moved > 0


def test_a_uniform_pair_is_uniform():
    generator = torch.Generator().manual_seed(0)
    counts: dict[tuple[int, int], int] = {}
    draws = 6000
    for _ in range(draws):
        pair = draw_pair("uniform", 6, 1.0, 0, generator)
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 15
    expected = draws / 15
    chi2 = sum((c - expected) ** 2 / expected for c in counts.values())
    assert chi2 < 36.1  # 14 degrees of freedom, p = .001


def test_gamma_variates_have_the_mean_and_variance_of_their_shape():
    generator = torch.Generator().manual_seed(0)
    for shape in DIRICHLET:
        values = torch.tensor([_gamma(shape, generator) for _ in range(4000)])
        se = math.sqrt(shape / 4000)
        assert float(values.mean()) == pytest.approx(shape, abs=4 * se)
        assert float(values.var()) == pytest.approx(shape, rel=0.2)


def test_late_bias_draws_in_proportion_to_the_position():
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(5)
    draws = 8000
    for _ in range(draws):
        counts[late_biased(0, 5, 1, 2.0, generator)[0]] += 1
    expected = torch.arange(1.0, 6.0) ** 2
    expected = expected / expected.sum() * draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5  # 4 degrees, p = .001


def test_stride_and_start_of_even_steps():
    generator = torch.Generator().manual_seed(0)
    starts = set()
    for _ in range(200):
        steps = evenly(0, 16, 3, generator)
        assert [b - a for a, b in zip(steps, steps[1:], strict=False)] == [5, 5]
        assert steps[-1] <= 16
        starts.add(steps[0])
    assert starts == set(range(7))  # 17 steps less two strides of 5


def test_shares_of_two_segments_follow_their_lengths():
    for before in range(1, 25):
        for after in range(1, 25):
            for count in range(2, min(before + after, 9) + 1):
                a, b = split_count(count, before, after)
                assert a + b == count
                assert 1 <= a <= before
                assert 1 <= b <= after
                exact = count * before / (before + after)
                bounds = (max(1, count - after), min(before, count - 1))
                assert abs(a - min(max(exact, bounds[0]), bounds[1])) <= 0.5
    with pytest.raises(ValueError, match="1 active steps cannot be shared"):
        split_count(1, 5, 5)
