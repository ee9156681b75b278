"""Each reward's share of the advantage: the parts add up to it, the shares to one."""

import itertools

import pytest
import torch

from headwater.types import Scores
from headwater_grpo import advantages
from headwater_grpo.algorithms import DanceGrpo
from headwater_grpo.shares import parts_of_each, parts_of_sum, shares

GROUPS = [0, 1, 0, 2, 1, 2, 0, 1, 2, 0, 1, 2]  # members are no neighbours
WEIGHTS = {"a": 1.0, "b": 0.3, "c": -2.0}


def values(seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(3, len(GROUPS), generator=generator, dtype=torch.float64)
    return {"a": draw[0], "b": 10 * draw[1] + 5, "c": 0.1 * draw[2]}


SETTINGS = [
    {"unbiased": unbiased, "epsilon": epsilon, "floor": floor, "trimmed": trimmed}
    for unbiased, (floor, epsilon), trimmed in itertools.product(
        (False, True), (("add", 1e-4), ("max", 1e-6)), (0.0, 0.3)
    )
]


@pytest.mark.parametrize("scale", ["group", "global", "none"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_parts_add_up_to_the_advantage(scale, settings):
    rewards = values()
    whole = advantages.group_advantages(
        advantages.weighted_sum(rewards, WEIGHTS), GROUPS, scale, **settings
    )
    parts = parts_of_sum(rewards, WEIGHTS, GROUPS, scale, **settings)
    assert torch.allclose(sum(parts.values()), whole, rtol=0, atol=1e-12)
    for batch in ({}, {"normalise_batch": True}, {"normalise_weights": True}):
        whole = advantages.each_then_sum(rewards, WEIGHTS, GROUPS, scale, **batch, **settings)
        parts = parts_of_each(rewards, WEIGHTS, GROUPS, scale, **batch, **settings)
        assert torch.allclose(sum(parts.values()), whole, rtol=0, atol=1e-12)


def test_a_share_is_the_mean_absolute_part_over_the_kept_samples():
    parts = {"a": torch.tensor([1.0, -3.0, 5.0]), "b": torch.tensor([1.0, 0.0, 9.0])}
    found = shares(parts, torch.tensor([True, True, False]))
    assert found == {"a": 0.8, "b": 0.2}
    assert shares(parts, torch.zeros(3, dtype=torch.bool)) == {}


@pytest.mark.parametrize("combine", ["sum", "each"])
def test_the_logged_shares_add_up_to_one_and_follow_the_scale_only_under_sum(combine):
    plugin = DanceGrpo(combine=combine)
    logged = []
    for factor in (1.0, 100.0):
        rewards = values()
        rewards["b"] = rewards["b"] * factor
        weights = dict.fromkeys(rewards, 1.0)
        plugin.credit(Scores(rewards, weights, dict.fromkeys(rewards), len(GROUPS)), GROUPS)
        found = plugin.measured()
        logged.append([found[f"share/{key}"] for key in "abc"])
        assert sum(logged[-1]) == pytest.approx(1, abs=1e-12)
    # by hand, over each group: |w (r - mean)| of a group over its deviation
    if combine == "each":  # a common factor of one reward changes nothing
        assert logged[0] == pytest.approx(logged[1], abs=1e-6)
    else:
        assert logged[0][1] < logged[1][1]
        assert logged[1][1] > 0.99


def test_one_reward_has_no_share_to_log():
    plugin = DanceGrpo()
    rewards = {"a": values()["a"]}
    plugin.credit(Scores(rewards, {"a": 1.0}, {"a": None}, len(GROUPS)), GROUPS)
    assert not [name for name in plugin.measured() if name.startswith("share/")]
