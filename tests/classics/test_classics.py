"""Groups of the classical estimators, against their definitions."""

import attrs
import pytest
import torch

from headwater.randomness import noise, seed_of
from headwater.testing.cached import build, cached_rollout
from headwater_classics import Bptt, DraftK, DraftLV, DRTune, Exact, ReFL


def test_bptt_lets_every_gradient_through():
    groups = build(Bptt(), cached_rollout(6)).groups
    assert [g.steps for g in groups] == [(i,) for i in range(6)]
    assert all(g.coupling == 1 and g.basis.tolist() == [[1.0]] for g in groups)


def test_draft_k_stops_at_its_first_step():
    groups = build(DraftK(k=3), cached_rollout(8)).groups
    assert [g.active for g in groups] == [(5,), (6,), (7,)]
    assert [g.coupling for g in groups] == [0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="k = 9 steps of a rollout of 8"):
        build(DraftK(k=9), cached_rollout(8))


def test_refl_draws_from_the_last_eleven_of_twenty_five():
    rollout = cached_rollout(25)
    seen = {build(ReFL(), rollout, seed).groups[0].steps[0] for seed in range(300)}
    assert seen == set(range(14, 25))


def test_the_posterior_mean_row_holds_the_sigma_of_its_step():
    rollout = cached_rollout(25)
    h = torch.tensor([rollout.step_size(i) for i in range(25)], dtype=torch.float64)
    for seed in range(20):
        surrogate = build(ReFL(), rollout, seed)
        (group,) = surrogate.groups
        tau = group.active[0]
        weight = float(group.basis[0] @ h[list(group.steps)])
        assert weight == pytest.approx(float(rollout.sigmas[tau]), rel=1e-12)
        expected = rollout.state(tau) - float(rollout.sigmas[tau]) * rollout.velocity(tau)
        assert torch.equal(surrogate.endpoint, expected)


def test_drtune_strides_up_to_its_stop():
    rollout = cached_rollout(25)
    stops, inactive = set(), 0
    for seed in range(400):
        surrogate = build(DRTune(), rollout, seed)
        (group,) = surrogate.groups
        e = int(surrogate.diagnostics["step"])
        stops.add(e)
        gaps = {b - a for a, b in zip(group.active, group.active[1:], strict=False)}
        assert gaps == {(e + 1) // 3}
        assert group.active[-1] <= e
        inactive += e not in group.active
        for row, a in enumerate(group.active):
            ones = range(e, 25) if a == e else [a]
            assert group.basis[row].nonzero().flatten().tolist() == list(ones)
    assert stops == set(range(15, 25))
    assert 0 < inactive < 400


@pytest.mark.parametrize(
    "estimator", [ReFL(endpoint="sample"), DRTune(endpoint="sample")], ids=repr
)
def test_on_the_sample_every_row_is_its_own_step(estimator):
    rollout = cached_rollout(12)
    surrogate = build(estimator, rollout)
    assert torch.equal(surrogate.endpoint, rollout.state(12))
    assert all(row.sum() == 1 and row.max() == 1 for row in surrogate.groups[0].basis)


class Half:
    """v = x / 2, counting its samples."""

    seen = 0

    def velocity(self, x, sigma, conditioning):
        assert sigma.shape == (len(x),)
        self.seen += len(x)
        return x / 2


def test_draft_lv_re_noises_at_the_last_sigma():
    rollout, half = cached_rollout(9, size=3), Half()
    surrogate = build(DraftLV(n=2), rollout, backbone=half)
    last, sigma = surrogate.rollout, float(rollout.sigmas[8])
    assert half.seen == 6
    assert (last.steps, len(last.batch), surrogate.endpoint.shape[0]) == (1, 9, 9)
    assert torch.equal(last.state(0)[:3], rollout.state(8))
    assert torch.equal(last.state(1)[:3], rollout.state(9))
    for copy in range(2):
        for b in range(3):
            row = 3 + 3 * copy + b
            eps = noise((3, 2), [seed_of(rollout.batch.seeds[b], "renoise", copy)], torch.float64)
            x = (1 - sigma) * rollout.state(9)[b] + sigma * eps[0]
            torch.testing.assert_close(last.state(0)[row], x, rtol=1e-14, atol=0)
            torch.testing.assert_close(
                last.state(1)[row], x - sigma * x / 2, rtol=1e-14, atol=1e-15
            )
            assert last.batch.seeds[row] == rollout.batch.seeds[b]


def test_draft_lv_on_the_sample_is_draft_1():
    rollout = cached_rollout(9)
    surrogate = build(DraftLV(endpoint="sample"), rollout, backbone=Half())
    assert torch.equal(surrogate.endpoint, rollout.state(9))
    assert len(surrogate.rollout.batch) == len(rollout.batch)


def test_exact_takes_the_trained_steps():
    surrogate = build(Exact(), cached_rollout(9, trained=(1, 4, 7)))
    assert [g.steps for g in surrogate.groups] == [(1,), (4,), (7,)]
    assert surrogate.endpoint is None
    assert attrs.has(Exact)
