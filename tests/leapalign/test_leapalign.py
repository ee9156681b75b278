"""LeapAlign's draws, groups and sample weights against the paper's formulas."""

import pytest
import torch

import headwater
from headwater.errors import InputError
from headwater.testing.cached import build, cached_rollout
from headwater_leapalign import LeapAlign


def test_two_leaps_and_the_discount_at_their_joint():
    rollout = cached_rollout(25)
    pairs = set()
    for seed in range(200):
        first, second = build(LeapAlign(), rollout, seed).groups
        assert (first.coupling, second.coupling) == (0.0, 0.3)
        assert first.steps[-1] + 1 == second.steps[0]
        assert second.steps[-1] == 24
        assert torch.equal(first.basis, torch.ones_like(first.basis))
        pairs.add((first.steps[0], second.steps[0]))
    assert min(k for k, _ in pairs) == 0
    assert max(j for _, j in pairs) == 24


def test_sample_weights_are_one_over_the_two_floored_distances():
    rollout = cached_rollout(10, size=4)
    for tau in (0.1, 0.7):
        surrogate = build(LeapAlign(tau=tau), rollout, 5)
        k, j = (g.steps[0] for g in surrogate.groups)
        s = rollout.sigmas.double()
        for b in range(4):
            leap = rollout.state(k)[b] - (s[k] - s[j]) * rollout.velocity(k)[b]
            last = rollout.state(j)[b] - s[j] * rollout.velocity(j)[b]
            d_j = float((leap - rollout.state(j)[b]).abs().mean())
            d_0 = float((last - rollout.state(10)[b]).abs().mean())
            expected = 1 / (max(d_j, tau) + max(d_0, tau))
            assert float(surrogate.sample_weights[b]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("leaps", [1, 2, 3])
def test_every_joint_is_coupled(leaps):
    groups = build(LeapAlign(leaps=leaps, coupling=0.7), cached_rollout(8)).groups
    assert [g.coupling for g in groups] == [0.0, 0.7, 0.7][:leaps]


def test_the_range_limits_where_leaps_start():
    rollout = cached_rollout(20)
    starts = set()
    for seed in range(200):
        groups = build(LeapAlign(range=(0.25, 0.5)), rollout, seed).groups
        starts |= {g.steps[0] for g in groups}
    assert starts == set(range(5, 10))
    with pytest.raises(ValueError, match="2 leaps need as many steps"):
        build(LeapAlign(range=(0.5, 0.55)), rollout)


def test_options_are_checked():
    for settings, text in [
        ({"coupling": 1.2}, "from 0 to 1"),
        ({"leaps": 4}, "expected one of 1, 2, 3, got 4"),
        ({"range": [0.5, 0.5]}, "expected \\[low, high\\]"),
        ({"tau": 0}, "above 0"),
    ]:
        with pytest.raises(InputError, match=text):
            headwater.load("estimator", "leapalign", settings)
