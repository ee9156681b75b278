"""The pure functions of GRPO one by one: closed forms, borders, and who runs which oracle.

The other files run the recorded cases and the whole objective; here is what they leave out.
"""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from headwater_grpo import advantages, ratios, steps, windows
from headwater_grpo.algorithms import DanceGrpo, FlowGrpoFast, MixGrpo
from headwater_grpo.dynamics import Cps, DanceSde, FlowSde

ORACLES = Path(__file__).parent / "oracles"
SIGMAS = torch.tensor([1.0, 0.9, 0.6, 0.2, 0.0], dtype=torch.float64)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- recorded cases ---


HERE = {
    "adv/flow_grpo/global_stdTrue",
    "adv/flow_grpo/global_stdFalse",
    "adv/dancegrpo/group4",
    "adv/flow_factory/compute_gdpo/global_stdTrue",
    "bestofn/dancegrpo/4of8",
    "window/mixgrpo/progressive_overlap_rollback",
    "window/verl_omni/progressive",
    "ratio/flow_grpo/rationormFalse",
    "ratio/verl_omni/grpo_guard",
}
IN_JAGG = {"jagg/linear/sde/start0", "jagg/linear/chord/start0"}


def ids(path):
    return {case["id"] for case in json.loads(path.read_text())["cases"]}


def test_every_recorded_id_is_run_here_or_in_the_tests_of_jagg():
    """test_step_oracles.py runs all of its file; test_extra_oracles.py names those of `HERE`."""
    assert len(ids(ORACLES / "sde_steps.json")) == 70
    assert ids(ORACLES / "grpo_extra.json") == HERE
    assert ids(ORACLES.parents[1] / "jagg" / "oracles" / "jagg.json") == IN_JAGG


# --- the step ---


def test_the_predictions_give_the_state_back():
    data, noise, sigma = random(2, 3), random(2, 3, seed=1), 0.7
    x, v = (1 - sigma) * data + sigma * noise, noise - data
    assert torch.allclose(steps.predicted_image(x, v, sigma), data, rtol=1e-12)
    assert torch.allclose(steps.predicted_noise(x, v, sigma), noise, rtol=1e-12)


def test_the_last_step_of_cps_has_no_density():
    x, v, cps = random(2, 3), random(2, 3, seed=1), Cps(0.7)
    last = cps.transition(x, v, 3, SIGMAS)
    assert last.std == 0
    with pytest.raises(ValueError, match="deterministic and has no density"):
        cps.log_prob(x, last)
    with pytest.raises(ValueError, match="deterministic and has no density"):
        cps.log_prob_grad(x, last, x, v, 3, SIGMAS)


@pytest.mark.parametrize("cls", [FlowSde, DanceSde, Cps])
@pytest.mark.parametrize("level", [math.nan, math.inf, -0.1])
def test_a_noise_level_is_a_finite_number_above_0(cls, level):
    with pytest.raises(ValueError, match="expected a number"):
        cls(level)


def test_the_normaliser_changes_no_ratio():
    y, old, new = random(2, 6), random(2, 6, seed=1), random(2, 6, seed=2)
    found = [
        steps.gaussian_log_prob(y, new, 0.3, normaliser=n)
        - steps.gaussian_log_prob(y, old, 0.3, normaliser=n)
        for n in (True, False)
    ]
    assert torch.allclose(*found, rtol=1e-12, atol=1e-13)
    true = torch.distributions.Normal(new, 0.3).log_prob(y).mean(1)
    assert torch.allclose(steps.gaussian_log_prob(y, new, 0.3), true, rtol=1e-12)


# --- advantages ---


def test_the_lowest_rewards_may_be_left_out_of_the_statistics_but_not_of_the_advantages():
    rewards = torch.tensor([0.0, 1.0, 2.0, 3.0, 10.0], dtype=torch.float64)
    found = advantages.group_advantages(rewards, [0] * 5, epsilon=0.0, trimmed=0.3)
    counted = rewards[1:]  # floor(5 * 0.3) = 1 is left out
    expected = (rewards - counted.mean()) / counted.std(correction=0)
    assert torch.allclose(found, expected, rtol=1e-12)


def test_weights_may_be_divided_by_their_sum():
    values = {"a": random(6), "b": random(6, seed=1)}
    groups = [0, 1, 0, 1, 0, 1]
    got = advantages.each_then_sum(values, {"a": 1.0, "b": 3.0}, groups, normalise_weights=True)
    a, b = (advantages.group_advantages(v, groups) for v in values.values())
    assert torch.allclose(got, 0.25 * a + 0.75 * b, rtol=1e-12)


def test_verls_deviation_is_that_of_rewards_repeated_over_the_steps():
    """verl takes the unbiased deviation of the (B, steps) matrix: not quite that of (B,)."""
    rewards, groups, repeats = random(6), [0, 0, 0, 1, 1, 1], 4
    centred = rewards - rewards.view(2, 3).mean(1).repeat_interleave(3)
    expected = centred / (rewards[:, None].expand(6, repeats).std() + 1e-4)
    got = advantages.group_advantages(
        rewards.repeat_interleave(repeats),
        [g for g in groups for _ in range(repeats)],
        "global",
        unbiased=True,
    ).view(6, repeats)
    assert torch.allclose(got, expected[:, None].expand(6, repeats), rtol=1e-12)
    plain = advantages.group_advantages(rewards, groups, "global", unbiased=True)
    assert not torch.allclose(plain, expected, rtol=1e-3)


def test_scale_none_only_centres():
    found = advantages.group_advantages(torch.tensor([1.0, 3.0, 5.0]), [0, 0, 1], "none")
    assert found.tolist() == [-1.0, 1.0, 0.0]


def test_a_group_without_spread_is_told_by_its_extremes_not_by_its_deviation():
    rewards = torch.tensor([0.1] * 7 + [0.2, 0.2, 0.2000001])
    assert (
        advantages.spread_mask(rewards, ["a"] * 7 + ["b"] * 3).tolist() == [False] * 7 + [True] * 3
    )


def test_best_of_an_odd_count_takes_one_more_of_the_best_and_breaks_ties_by_position():
    values = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    assert advantages.best_of(values, [0] * 6, 3).nonzero().flatten().tolist() == [2, 3, 4]
    assert advantages.best_of(values, [0, 0, 0, 1, 1, 1], 99).all()


# --- windows ---


def recorded_rule(total, size, stride, updates_each, roll_back, updates):
    """l <- min(l + s, T - w), written as the state machine it is."""
    start = 0
    for update in range(updates):
        if update and update % updates_each == 0:
            at_end = start == total - size
            start = (0 if roll_back else start) if at_end else min(start + stride, total - size)
        yield start


@pytest.mark.parametrize("roll_back", [True, False])
def test_the_window_of_an_update_is_that_of_the_state_machine(roll_back):
    for total, size, stride, each in itertools.product(range(1, 8), range(1, 8), (1, 2, 5), (1, 3)):
        if size > total:
            continue
        expected = list(recorded_rule(total, size, stride, each, roll_back, 40))
        common = (size, total, stride)
        assert expected == [
            windows.progressive_start(u, *common, each, roll_back=roll_back) for u in range(40)
        ]
        assert expected == [
            windows.decaying_start(u, *common, lambda _, n=each: n, roll_back=roll_back)
            for u in range(40)
        ]


@pytest.mark.parametrize("strategy", ["progressive", "random", "decay", "exp-decay", "frozen"])
def test_a_mix_window_is_whole_and_a_function_of_its_update(strategy):
    plugin = MixGrpo(strategy=strategy, window=4, updates_each=3)
    first = [plugin.stochastic_steps(u, 12) for u in range(600)]
    assert all(len(w) == 4 and w[-1] < 11 for w in first)
    again = [plugin.stochastic_steps(u, 12) for u in reversed(range(600))]
    assert first == again[::-1]
    reached = {w[0] for w in first}
    assert reached == ({0} if strategy == "frozen" else set(range(8)))


def test_decaying_positions_last_as_long_as_their_formula_says():
    assert [windows.linear_decay(k, 4, 20, 4) for k in range(5)] == [20, 16, 12, 8, 4]
    assert windows.linear_decay(0, 0, 20, 4) == 20
    assert windows.exponential_decay(13, 25, 13.0, 0.1) == 25
    assert windows.exponential_decay(20, 25, 13.0, 0.1) == math.ceil(25 * math.exp(-0.7))
    starts = [
        windows.decaying_start(u, 2, 4, 1, lambda at: 3 - at, roll_back=True) for u in range(8)
    ]
    assert starts == [0, 0, 0, 1, 1, 2, 0, 0]


def test_flow_grpo_fast_starts_at_every_place_and_nowhere_else():
    plugin = FlowGrpoFast(window=2, window_range=(1, 6))
    found = {plugin.stochastic_steps(u, 10) for u in range(200)}
    assert found == {(s, s + 1) for s in range(1, 5)}


def test_dance_grpo_trains_its_fraction_and_never_the_last_step():
    plugin = DanceGrpo()
    found = [plugin.trained_steps(0, 12, torch.Generator().manual_seed(s)) for s in range(50)]
    assert {len(set(f)) for f in found} == {6}  # int(11 * 0.6), where int(12 * 0.6) is 7
    assert set().union(*found) == set(range(11))


def test_flow_grpo_trains_all_but_the_last_of_up_to_99_steps():
    assert windows.first_fraction(10, 0.99) == tuple(range(9))
    assert windows.first_fraction(1, 0.99) == ()


# --- ratios ---


@pytest.mark.parametrize("ratio", [1.0, 1.1, 0.9, 1.5, 0.5])
@pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
def test_the_upstream_of_the_clipped_term_ties_included(ratio, advantage):
    """On a border and at ratio 1 both branches tie; the gradient is the unclipped one's."""
    log_ratio = torch.full((1,), math.log(ratio), dtype=torch.float64, requires_grad=True)
    r = torch.exp(log_ratio) if ratio in (1.5, 0.5) else log_ratio - log_ratio.detach() + ratio
    a = torch.tensor([advantage], dtype=torch.float64)
    loss = ratios.clipped_loss(r, a, 0.1, 0.1).sum() / 4
    (slope,) = torch.autograd.grad(loss, r)
    ones = torch.ones(1, 3, dtype=torch.float64)
    got = ratios.policy_upstream(ones, r.detach(), a, 0.1, 0.1, 4)
    assert torch.allclose(got, ones * slope * r.detach(), rtol=1e-12)


@pytest.mark.parametrize("space", ["x", "x-flow-grpo", "v"])
def test_the_gradient_of_the_kl_in_the_velocity(space):
    c, std, dt = -0.17, 0.3, -0.2
    x, reference = random(2, 5), random(2, 5, seed=1)
    v = random(2, 5, seed=2).requires_grad_()
    new = v if space == "v" else x + c * v
    value = ratios.kl(space, new, reference, std, dt)
    (expected,) = torch.autograd.grad(value.sum(), v)
    got = ratios.kl_upstream(space, new.detach(), reference, std, dt, c)
    assert torch.allclose(got, expected, rtol=1e-12)


def test_the_ratio_of_guard_is_per_sample_and_so_is_its_gradient():
    """The upstream code takes the bias over the batch; ours is of each sample alone."""
    c = -0.17
    x, old, noise = random(3, 5), random(3, 5, seed=1), random(3, 5, seed=2)
    v = random(3, 5, seed=3).requires_grad_()
    whole = ratios.guard_log_ratio(x + c * v, old, noise)
    (expected,) = torch.autograd.grad(whole.sum(), v)
    got = ratios.guard_log_ratio_grad(noise, c)
    assert torch.allclose(got, expected, rtol=1e-12)
    alone = [ratios.guard_log_ratio(x[[b]] + c * v[[b]], old[[b]], noise[[b]]) for b in range(3)]
    assert torch.allclose(whole, torch.cat(alone), rtol=1e-12)
