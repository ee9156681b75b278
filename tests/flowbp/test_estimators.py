"""The named estimators, their options, and `surrogate` as each of them."""

import pytest
import torch

import headwater
from headwater.errors import InputError
from headwater.testing.cached import build, cached_rollout, same_groups, with_size
from headwater_classics import DRTune, ReFL
from headwater_flowbp import Bridge, Lagrange, Sparse
from headwater_leapalign import LeapAlign

EVERY = [
    Sparse(k=2),
    Bridge(k=3, coupling=0.5),
    Bridge(k=4, sampler="midpoint", tail=0.8, rescale=0.0),
    *(
        Lagrange(active=a, weights=w, order=o)
        for a in ("start", "midpoint", "all")
        for w in ("lagrange", "uniform")
        for o in (1, 3)
    ),
    Lagrange(sampler="dirichlet", cap=4, tail=0.7),
    Lagrange(sampler="midpoint-j"),
]


@pytest.mark.parametrize("estimator", EVERY, ids=repr)
def test_groups_are_valid_for_every_length_and_draw(estimator):
    for n in (5, 6, 7, 13, 25, 50):
        rollout = cached_rollout(n)
        for seed in range(15):
            surrogate = build(estimator, rollout, seed)  # Group checks itself
            assert surrogate.groups[-1].steps[-1] == n - 1
            assert surrogate.groups[0].coupling == 0


@pytest.mark.parametrize("estimator", EVERY, ids=repr)
def test_draws_do_not_depend_on_the_batch(estimator):
    rollout = cached_rollout(12, size=5)
    for seed in range(5):
        whole, part = build(estimator, rollout, seed), build(estimator, with_size(rollout, 2), seed)
        assert [g.active for g in whole.groups] == [g.active for g in part.groups]
        assert [g.steps for g in whole.groups] == [g.steps for g in part.groups]


def test_rescale_makes_up_for_the_dropped_length():
    rollout = cached_rollout(20)
    h = torch.tensor([rollout.step_size(i) for i in range(20)], dtype=torch.float64)
    for rescale in (0.0, 0.5, 1.0):
        (group,) = build(Sparse(k=4, rescale=rescale), rollout, 3).groups
        held = float(h[list(group.active)].sum())
        factor = 1 + rescale * (float(h.sum()) / held - 1)
        expected = torch.zeros(4, 20, dtype=torch.float64)
        for row, step in enumerate(group.active):
            expected[row, step] = factor
        torch.testing.assert_close(group.basis, expected, rtol=1e-12, atol=0)
        if rescale == 1:
            assert float((group.basis @ h).sum()) == pytest.approx(float(h.sum()))


def test_bridge_always_trains_the_joint():
    for seed in range(40):
        early, late = build(Bridge(k=4), cached_rollout(15), seed).groups
        assert late.active[0] == late.steps[0] == early.steps[-1] + 1
        assert late.coupling == 0.1
        assert len(early.active) + len(late.active) == 4


def test_more_active_steps_than_a_rollout_has_is_an_error_with_both_numbers():
    with pytest.raises(ValueError, match="9 active steps of the 5"):
        build(Sparse(k=9), cached_rollout(5))


PRESETS = [
    (
        LeapAlign(),
        {
            "active": {"place": "supports", "count": 1, "supports": 1},
            "weights": "leap",
            "split": "uniform",
            "coupling": 0.3,
            "tau": 0.1,
        },
    ),
    (
        Sparse(k=4, late_bias=1.0, rescale=0.5),
        {"active": {"count": 4, "late_bias": 1.0}, "weights": "euler", "rescale": 0.5},
    ),
    (
        Bridge(k=5, late_bias=4.0, rescale=0.5, coupling=0.5),
        {
            "active": {"count": 5, "late_bias": 4.0},
            "split": "uniform",
            "rescale": 0.5,
            "coupling": 0.5,
        },
    ),
    (
        Lagrange(cap=10),
        {
            "active": {"place": "supports", "count": 3, "supports": 2},
            "weights": "lagrange",
            "split": "dirichlet",
            "cap": 10,
            "rescale": 0.5,
            "coupling": 0.1,
            "tau": 0.2,
        },
    ),
    (
        ReFL(),
        {
            "endpoint": "posterior-mean",
            "stop": 0.44,
            "active": {"place": "supports", "count": 1, "supports": 1},
            "weights": "leap",
        },
    ),
    (
        DRTune(),
        {"endpoint": "posterior-mean", "stop": 0.4, "active": {"place": "evenly", "count": 3}},
    ),
]


@pytest.mark.parametrize(("named", "settings"), PRESETS, ids=lambda p: type(p).__name__)
def test_the_free_surrogate_is_each_named_estimator(named, settings):
    free = headwater.load("estimator", "surrogate", settings)
    for n in (6, 13, 25):
        rollout = cached_rollout(n)
        for seed in range(10):
            same_groups(build(free, rollout, seed), build(named, rollout, seed))


def test_nonsense_is_refused_in_words():
    for settings, text in [
        ({"endpoint": "posterior-mean", "split": "uniform"}, 'takes split = "none"'),
        ({"weights": "lagrange"}, 'takes active.place = "supports"'),
        ({"tau": -1.0}, "above 0"),
        ({"active": {"count": 0}}, "at least 1"),
        ({"active": {"place": "early"}}, "expected one of 'late-biased'"),
        ({"coupling": 2.0}, "from 0 to 1"),
        ({"cap": 3, "split": "uniform"}, "limits only the pairs"),
    ]:
        with pytest.raises(InputError, match=text):
            headwater.load("estimator", "surrogate", settings)
