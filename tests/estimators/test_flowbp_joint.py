"""FlowBP through the engine against surrogate trajectories with connectors.

Tolerance 1e-10 relative in float64, far above rounding (1e-14 seen) and far below any wrong term.
"""

from __future__ import annotations

import pytest
from estimator_runs import build
from joint_graphs import (
    LagrangeSettings,
    active_supports,
    bridge,
    lagrange,
    sparse,
    supports,
)

from headwater_flowbp import Bridge, Lagrange, Sparse

N = 11
SAMPLERS = ["uniform", "dirichlet", "midpoint", "midpoint-j"]


def first_of_tail(tail: float) -> int:
    return N - round(tail * N)


@pytest.mark.parametrize("mode", ["stream", "joint", "fused"])
@pytest.mark.parametrize("rescale", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [1, 3, N])
def test_sparse_gives_the_gradient_of_its_reconstruction(
    compare, k, rescale, mode, record_property
) -> None:
    for seed, late_bias in enumerate((0.0, 1.0, 4.0)):
        estimator = Sparse(k=k, rescale=rescale, late_bias=late_bias)

        def graph(cache, groups):
            (group,) = groups
            assert len(group.active) == k
            return sparse(cache, group.active, rescale)

        compare(estimator, seed, graph, record_property, mode)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rescale", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("coupling", [0.0, 0.4, 1.0])
def test_bridge_gives_the_gradient_of_its_two_reconstructions(
    compare, coupling, rescale, sampler, record_property
) -> None:
    for seed, (k, late_bias) in enumerate([(2, 2.0), (5, 0.0), (4, 3.0)]):
        estimator = Bridge(
            k=k, late_bias=late_bias, rescale=rescale, coupling=coupling, sampler=sampler
        )

        def graph(cache, groups, k=k):
            j = groups[1].steps[0]
            active = [*groups[0].active, *groups[1].active]
            assert groups[1].active[0] == j and len(active) == k
            return bridge(cache, j, active, rescale, coupling)

        compare(estimator, seed, graph, record_property)


@pytest.mark.parametrize("tail", [0.5, 0.7])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_bridge_keeps_active_steps_and_the_sum_of_sizes_to_the_tail(
    compare, sampler, tail, record_property
) -> None:
    for seed in range(3):
        estimator = Bridge(k=3, rescale=1.0, coupling=0.5, sampler=sampler, tail=tail)

        def graph(cache, groups):
            active = [*groups[0].active, *groups[1].active]
            first = first_of_tail(tail)
            assert min(active) >= first
            return bridge(cache, groups[1].steps[0], active, 1.0, 0.5, first)

        compare(estimator, seed, graph, record_property)


@pytest.mark.parametrize("k", range(2, N + 1))
def test_bridge_shares_its_steps_by_length_with_one_in_each_half_at_least(flow, rollout, k) -> None:
    for seed in range(8):
        before, after = build(Bridge(k=k), flow, rollout, seed).groups
        share = k * len(before.steps) / N
        count = len(before.active)
        assert count + len(after.active) == k and count >= 1
        # Where no half is full or down to one, the share is rounded to the nearest.
        if 1 < count < len(before.steps) and 1 < len(after.active) < len(after.steps):
            assert abs(count - share) <= 0.5
        assert before.steps[-1] + 1 == after.steps[0] == after.active[0]


def lagrange_graph(estimator: Lagrange, tail: float = 1.0):
    settings = LagrangeSettings(
        coupling=estimator.coupling,
        tau=estimator.tau,
        rescale=estimator.rescale,
        order=estimator.order,
        mode=estimator.active,
        weights=estimator.weights,
    )

    def graph(cache, groups):
        k, j = groups[0].steps[0], groups[1].steps[0]
        assert first_of_tail(tail) <= k < j < N
        for group, ends in zip(groups, ((k, j), (j, N)), strict=True):
            assert group.steps == tuple(range(*ends))
            expected = active_supports(supports(*ends, estimator.order), estimator.active)
            assert list(group.active) == expected
        return lagrange(cache, k, j, settings)

    return graph


@pytest.mark.parametrize("weights", ["lagrange", "uniform"])
@pytest.mark.parametrize("active", ["start", "midpoint", "all"])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_lagrange_gives_the_gradient_of_its_quadrature_connectors(
    compare, order, active, weights, record_property
) -> None:
    for seed, (rescale, coupling) in enumerate([(0.0, 0.1), (0.5, 1.0), (1.0, 0.3), (1.0, 0.0)]):
        estimator = Lagrange(
            order=order, active=active, weights=weights, rescale=rescale, coupling=coupling
        )
        compare(estimator, seed, lagrange_graph(estimator), record_property)


@pytest.mark.parametrize("tau", [1e-3, 0.05, 50.0])
def test_lagrange_weighs_samples_by_the_distance_from_all_its_supports(
    compare, tau, record_property
) -> None:
    for seed in range(3):
        estimator = Lagrange(tau=tau, active="start")
        compare(estimator, seed, lagrange_graph(estimator), record_property)


@pytest.mark.parametrize("tail", [0.5, 1.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_lagrange_holds_for_every_sampler_within_the_tail(
    compare, sampler, tail, record_property
) -> None:
    for seed in range(4):
        estimator = Lagrange(sampler=sampler, tail=tail)
        compare(estimator, seed, lagrange_graph(estimator, tail), record_property)


@pytest.mark.parametrize("cap", [2, 4])
def test_the_cap_limits_the_reverse_index_of_j_and_the_gradient_still_holds(
    compare, flow, rollout, cap, record_property
) -> None:
    reached = 0
    for seed in range(40):
        estimator = Lagrange(cap=cap)
        k, j = (group.steps[0] for group in build(estimator, flow, rollout, seed).groups)
        k_free, j_free = (group.steps[0] for group in build(Lagrange(), flow, rollout, seed).groups)
        assert N - j <= cap
        assert N - j == min(cap, N - j_free), "the same draw, cut"
        assert j - k == j_free - k_free, "the overflow goes to the noise side, the gap stays"
        reached += N - j_free > cap
    assert reached > 3, "a cap that never binds proves nothing"
    compare(Lagrange(cap=cap), 0, lagrange_graph(Lagrange(cap=cap)), record_property)


@pytest.mark.parametrize("mode", ["joint", "fused"])
def test_bridge_and_lagrange_hold_in_every_mode(compare, mode, record_property) -> None:
    compare(
        Lagrange(coupling=0.6), 5, lagrange_graph(Lagrange(coupling=0.6)), record_property, mode
    )

    def graph(cache, groups):
        active = [*groups[0].active, *groups[1].active]
        return bridge(cache, groups[1].steps[0], active, 1.0, 0.6)

    compare(Bridge(coupling=0.6), 5, graph, record_property, mode)
