"""LeapAlign through the engine against the paper's two-leap graph.

Tolerance 1e-10 relative in float64, far above rounding (1e-14 seen) and far below any wrong term.
"""

from __future__ import annotations

from collections import Counter

import pytest
from estimator_runs import build, joint_backward, update
from joint_graphs import Cache, leapalign

from headwater.testing.toy_flow import (
    gradient_vector,
    make_batch,
    relative,
    roll_out,
    zero_gradients,
)
from headwater_leapalign import LeapAlign

B, N = 4, 9


def compare(estimator, flow, rollout, seed, record, mode="stream") -> list[int]:
    zero_gradients(flow)
    found = update(estimator, flow, rollout, seed, mode=mode)
    through_engine = gradient_vector(flow)
    groups = found.surrogate.groups
    anchors = [group.active[0] for group in groups]
    assert groups[0].coupling == 0, "nothing reads the gradient before the first leap"
    cache = Cache(flow, rollout)
    endpoint, weights = leapalign(cache, anchors, estimator.coupling, estimator.tau)
    if not estimator.similarity_weights:
        weights = cache.evenly_weighted()
    zero_gradients(flow)
    joint_backward(flow, rollout.batch, [(endpoint, weights, range(B))])
    assert relative(found.surrogate.endpoint.detach(), endpoint.detach()) < 1e-12
    error = relative(through_engine, gradient_vector(flow))
    record("relative_error", error)
    assert error < 1e-10
    return anchors


@pytest.fixture(scope="module")
def rollout(flow):
    return roll_out(flow, make_batch(B, N))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("coupling", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("leaps", [1, 2, 3])
def test_leaps_give_the_papers_gradient(
    flow, rollout, leaps, coupling, seed, record_property
) -> None:
    estimator = LeapAlign(leaps=leaps, coupling=coupling)
    anchors = compare(estimator, flow, rollout, seed, record_property)
    assert len(anchors) == leaps


@pytest.mark.parametrize("tau", [1e-3, 0.3, 50.0])
def test_the_sample_weights_hold_for_a_tau_below_among_and_above_the_distances(
    flow, rollout, tau, record_property
) -> None:
    for seed in range(3):
        compare(LeapAlign(tau=tau), flow, rollout, seed, record_property)


def test_without_similarity_weights_every_sample_counts_alike(
    flow, rollout, record_property
) -> None:
    compare(LeapAlign(similarity_weights=False), flow, rollout, 1, record_property)


@pytest.mark.parametrize("part", [(0.0, 1 / 3), (1 / 3, 1.0), (0.5, 1.0)])
def test_the_range_bounds_the_anchors_and_not_the_leaps(
    flow, rollout, part, record_property
) -> None:
    for seed in range(4):
        anchors = compare(LeapAlign(range=part), flow, rollout, seed, record_property)
        assert all(int(part[0] * N) <= anchor < -(-part[1] * N // 1) for anchor in anchors)


@pytest.mark.parametrize("mode", ["joint", "fused"])
def test_every_mode_of_the_engine_gives_it(flow, rollout, mode, record_property) -> None:
    compare(LeapAlign(leaps=3), flow, rollout, 2, record_property, mode)


def test_the_anchors_are_any_two_steps_with_even_chances(flow, rollout) -> None:
    """36 pairs of 9 steps, 1,800 draws: chi-square of 35 degrees stays under 79 (1 in 20,000)."""
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(1800):
        groups = build(LeapAlign(), flow, rollout, seed).groups
        assert [*groups[0].steps, *groups[1].steps] == list(range(groups[0].steps[0], N))
        seen[tuple(group.active[0] for group in groups)] += 1
    assert len(seen) == 36
    assert sum((count - 50) ** 2 / 50 for count in seen.values()) < 79
