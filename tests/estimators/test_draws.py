"""The steps that FlowBP draws follow the stated distributions.

Bounds are four standard errors or more, with fixed seeds.
"""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from estimator_runs import build

from headwater.testing.toy_flow import make_batch, roll_out
from headwater_flowbp import Bridge, FreeSurrogate, Lagrange, Sparse
from headwater_flowbp.free import Active


@pytest.fixture(scope="module")
def short(flow):
    return roll_out(flow, make_batch(1, 4))


@pytest.fixture(scope="module")
def long(flow):
    return roll_out(flow, make_batch(1, 25))


def drawn_pairs(estimator, flow, rollout, count: int) -> list[tuple[int, int]]:
    """(k, j) of Lagrange's two groups."""
    every = (build(estimator, flow, rollout, seed).groups for seed in range(count))
    return [(first.steps[0], second.steps[0]) for first, second in every]


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_sparse_draws_step_i_in_proportion_to_a_power_of_i_plus_one(flow, short, bias) -> None:
    """1,000 draws of 4 steps: chi-square of 3 degrees stays under 22 (1 in 15,000)."""
    estimator = Sparse(k=1, late_bias=bias)
    seen = Counter(build(estimator, flow, short, s).groups[0].active[0] for s in range(1000))
    powers = [(i + 1) ** bias for i in range(4)]
    expected = [1000 * power / sum(powers) for power in powers]
    assert sum((seen[i] - e) ** 2 / e for i, e in enumerate(expected)) < 22


def test_bridge_counts_positions_after_j_from_the_step_after_j(flow, short) -> None:
    """j = 1 leaves steps 2 and 3: positions 1 and 2, so step 3 has 8 of 9 chances at bias 3.

    About 500 draws, standard error 0.014; positions from j would give 27 of 35, 0.118 less.
    """
    late = []
    for seed in range(1500):
        groups = build(Bridge(k=3, late_bias=3.0, sampler="midpoint-j"), flow, short, seed).groups
        if groups[1].steps[0] == 1:
            late.append(groups[1].active[1] == 3)
    assert len(late) > 400
    assert abs(statistics.mean(late) - 8 / 9) < 0.056


def test_the_late_bias_counts_step_numbers_within_a_tail_too(flow, short) -> None:
    """Steps 2 and 3 of 4: chances 27 to 64 at bias 3, for i is the step number.

    1,000 draws, standard error 0.0145; positions from the tail's start would give 8 of 9.
    """
    estimator = FreeSurrogate(active=Active(place="late-biased", count=1, late_bias=3.0), tail=0.5)
    last = [build(estimator, flow, short, s).groups[0].active == (3,) for s in range(1000)]
    assert abs(statistics.mean(last) - 64 / 91) < 0.058


def test_uniform_pairs_are_any_two_steps_with_even_chances(flow, short) -> None:
    """6 pairs, 900 draws: chi-square of 5 degrees stays under 26 (1 in 10,000)."""
    seen = Counter(drawn_pairs(Lagrange(sampler="uniform"), flow, short, 900))
    assert len(seen) == 6
    assert sum((count - 150) ** 2 / 150 for count in seen.values()) < 26


def test_midpoint_pairs_put_j_halfway_from_k_to_the_end(flow, long) -> None:
    pairs = drawn_pairs(Lagrange(sampler="midpoint"), flow, long, 400)
    assert {k for k, _ in pairs} == set(range(24))
    assert all(abs(j - (k + 25) / 2) <= 0.5 for k, j in pairs)


def test_midpoint_j_pairs_put_k_halfway_from_the_start_to_j(flow, long) -> None:
    pairs = drawn_pairs(Lagrange(sampler="midpoint-j"), flow, long, 400)
    assert {j for _, j in pairs} == set(range(1, 25))
    assert all(abs(k - j / 2) <= 0.5 for k, j in pairs)


def test_dirichlet_pairs_have_the_means_and_spreads_of_the_stated_shapes(flow, long) -> None:
    """Lengths a, b, c of Dir(2.5, 6, 2) times 25; 600 draws.

    Means 5.95 and 14.29, spreads 3.14 and 3.65, standard errors up to 0.15; rounding and the
    least length of 1 move a mean by less than 0.1. Bounds 0.6 and 12 % of the spread.
    """
    pairs = drawn_pairs(Lagrange(sampler="dirichlet"), flow, long, 600)
    a = [25 - j - 1 for _, j in pairs]
    b = [j - k for k, j in pairs]
    c = [k + 1 for k, _ in pairs]
    assert all(x + y + z == 25 and min(y, z) >= 1 for x, y, z in zip(a, b, c, strict=True))
    assert abs(statistics.mean(a) - 25 * 2.5 / 10.5) < 0.6
    assert abs(statistics.mean(b) - 25 * 6 / 10.5) < 0.6
    assert abs(statistics.stdev(a) / 3.14 - 1) < 0.12
    assert abs(statistics.stdev(b) / 3.65 - 1) < 0.12
    assert min(a) >= 1


@pytest.mark.parametrize("sampler", ["uniform", "dirichlet", "midpoint", "midpoint-j"])
def test_a_tail_bounds_every_pair(flow, long, sampler) -> None:
    pairs = drawn_pairs(Lagrange(sampler=sampler, tail=0.4), flow, long, 200)
    assert min(k for k, _ in pairs) >= 15
    assert min(k for k, _ in pairs) <= 17, "the tail is used, not only kept to"
    assert all(15 <= k < j < 25 for k, j in pairs)
