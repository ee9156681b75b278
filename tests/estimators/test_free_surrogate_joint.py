"""The free surrogate through the engine against graphs of its axes.

Tolerance 1e-10 relative in float64, far above rounding (1e-14 seen) and far below any wrong term.
"""

from __future__ import annotations

import pytest
from estimator_runs import build
from joint_free_surrogate import FreeSettings, Piece, free
from joint_graphs import drtune, refl, supports

from headwater.testing.toy_flow import relative
from headwater_flowbp import FreeSurrogate
from headwater_flowbp.free import Active

N = 11
SAMPLERS = ["uniform", "dirichlet", "midpoint", "midpoint-j"]


def pieces_of(groups, count: int | None) -> list[Piece]:
    """Nodes are the active steps, or `count` supports evenly over the segment."""
    return [
        Piece(
            group.steps[0],
            group.steps[-1] + 1,
            group.active
            if count is None
            else tuple(supports(group.steps[0], group.steps[-1] + 1, count)),
            group.active,
        )
        for group in groups
    ]


@pytest.mark.parametrize("split", ["none", *SAMPLERS])
@pytest.mark.parametrize("place", ["late-biased", "evenly"])
@pytest.mark.parametrize("weights", ["euler", "leap", "hat"])
def test_the_free_surrogate_holds_for_drawn_active_steps(
    compare, weights, place, split, record_property
) -> None:
    rescale = 0.8 if weights == "euler" else 0.0
    estimator = FreeSurrogate(
        active=Active(place=place, count=4),
        weights=weights,
        split=split,
        rescale=rescale,
        coupling=0.4,
    )

    def graph(cache, groups):
        settings = FreeSettings(weights=weights, coupling=0.4, rescale=rescale)
        return free(cache, pieces_of(groups, None), settings)

    for seed in range(3):
        compare(estimator, seed, graph, record_property)


@pytest.mark.parametrize("tau", [0.2, "none"])
@pytest.mark.parametrize("split", ["none", "uniform", "midpoint"])
@pytest.mark.parametrize("weights", ["euler", "leap", "hat", "lagrange"])
def test_the_free_surrogate_holds_for_supports(
    compare, weights, split, tau, record_property
) -> None:
    estimator = FreeSurrogate(
        active=Active(place="supports", count=4, supports=3, support_scale=0.6),
        weights=weights,
        split=split,
        rescale=0.7,
        coupling=0.4,
        tau=tau,
    )

    def graph(cache, groups):
        settings = FreeSettings(
            weights=weights,
            coupling=0.4,
            rescale=0.7,
            tau=None if tau == "none" else tau,
            support_scale=0.6,
        )
        return free(cache, pieces_of(groups, 4), settings)

    for seed in range(3):
        compare(estimator, seed, graph, record_property)


def test_the_free_surrogate_is_refl_with_one_support_at_a_posterior_mean(
    compare, record_property
) -> None:
    estimator = FreeSurrogate(
        endpoint="posterior-mean",
        active=Active(place="supports", count=1, supports=1),
        weights="leap",
    )
    for seed in range(4):
        compare(
            estimator,
            seed,
            lambda cache, groups: refl(cache, groups[0].active[0], "posterior-mean"),
            record_property,
        )


def test_the_free_surrogate_is_drtune_with_even_steps_and_a_posterior_mean(
    compare, flow, rollout, record_property
) -> None:
    estimator = FreeSurrogate(
        endpoint="posterior-mean", active=Active(place="evenly", count=3), weights="euler"
    )
    stop_trained = set()
    for seed in range(10):
        endpoint = build(estimator, flow, rollout, seed).endpoint

        def graph(cache, groups, endpoint=endpoint):
            means = [cache.x(i) - cache.sigma(i) * cache.old_v(i) for i in range(N)]
            (stop,) = [i for i, m in enumerate(means) if relative(endpoint, m) < 1e-12]
            stop_trained.add(stop in groups[0].active)
            return drtune(cache, groups[0].active, stop, "posterior-mean")

        compare(estimator, seed, graph, record_property)
    assert stop_trained == {True, False}
