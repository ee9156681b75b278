"""A reward that does not tell the samples of a prompt apart says nothing about them."""

import pytest
import torch

from headwater.types import Scores
from headwater_grpo import advantages
from headwater_grpo.algorithms import DanceGrpo, FlowGrpo, MixGrpo

G = 12
GROUPS = [i // G for i in range(4 * G)]
VARIED = torch.rand(4 * G, generator=torch.Generator().manual_seed(0))
FLAT = torch.tensor([21.3, 0.1, 0.7, 22.9]).repeat_interleave(G)


def scores(**values):
    return Scores(values, dict.fromkeys(values, 1.0), dict.fromkeys(values), count=len(GROUPS))


@pytest.mark.parametrize("algorithm", [FlowGrpo, DanceGrpo, MixGrpo])
def test_a_flat_reward_adds_nothing_to_the_advantages_of_another(algorithm):
    """In float32 the mean of twelve times 21.3 is off by a rounding; over 1e-8 that is 0.95."""
    plugin = algorithm(combine="each", scale="group")
    both = plugin.credit(scores(varied=VARIED, flat=FLAT), GROUPS)
    alone = plugin.credit(scores(varied=VARIED), GROUPS)
    assert torch.equal(both.advantages, alone.advantages)
    assert both.kept.all()


@pytest.mark.parametrize("scale", ["group", "global", "none"])
@pytest.mark.parametrize("floor", ["add", "max"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8])
def test_equal_rewards_are_worth_exactly_nothing(scale, floor, epsilon):
    found = advantages.group_advantages(FLAT, GROUPS, scale, epsilon=epsilon, floor=floor)
    assert torch.equal(found, torch.zeros_like(found))


def test_a_batch_of_equal_sums_is_worth_exactly_nothing():
    found = advantages.each_then_sum(
        {"flat": FLAT}, {"flat": 1.0}, GROUPS, epsilon=0.0, normalise_batch=True
    )
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-6])
def test_in_float64_a_rounding_is_left_that_is_far_below_any_advantage(epsilon):
    found = advantages.group_advantages(FLAT.double(), GROUPS, epsilon=epsilon)
    assert float(found.abs().max()) < 1e-5


def test_epsilon_0_leaves_no_nan_beside_a_flat_group():
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.5, 0.3])
    credit = DanceGrpo(epsilon=0.0).credit(scores(only=rewards), [0, 0, 0, 1, 1, 1])
    assert credit.advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert torch.isfinite(credit.advantages).all()


def test_the_best_and_the_worst_are_chosen_before_the_clip_makes_ties():
    rewards = torch.tensor([0.6, 0.1, 0.9, 0.0, 0.5])
    plugin = FlowGrpo(scale="group", best_of=2, advantage_clip=0.5)
    credit = plugin.credit(scores(only=rewards), [0] * 5)
    assert credit.kept.tolist() == [False, False, True, True, False]
    assert credit.advantages.abs().max() == 0.5


def test_group_ids_may_be_a_tensor():
    rewards = torch.tensor([1.0, 2.0, 5.0, 3.0])
    as_tensor = advantages.group_advantages(rewards, torch.tensor([0, 0, 1, 1]))
    assert torch.equal(as_tensor, advantages.group_advantages(rewards, [0, 0, 1, 1]))
    assert as_tensor.abs().min() > 0
