"""The hinge and its margins."""

import pytest
import torch

import headwater
from headwater.errors import InputError
from headwater.testing.cached import cached_rollout
from headwater.types import Scores, Surrogate
from headwater_direct import Direct
from headwater_direct.algorithm import hinge


def scores_of(values, margins=None, weights=None, count=2):
    weights = weights or dict.fromkeys(values, 1.0)
    return Scores(values, weights, margins or dict.fromkeys(values), count)


def test_the_hinge_counts_what_is_missing_to_each_margin():
    values = {"a": torch.tensor([0.2, 0.9]), "b": torch.tensor([3.0, 1.0])}
    scores = scores_of(values, {"a": 0.5, "b": 2.0}, {"a": 2.0, "b": 0.5})
    expected = torch.tensor([2 * 0.3 + 0, 0 + 0.5 * 1.0])
    torch.testing.assert_close(hinge(scores, "stated"), expected)
    torch.testing.assert_close(hinge(scores, {"a": 0.5, "b": 2.0}), expected)
    torch.testing.assert_close(hinge(scores, "none"), -torch.tensor([0.4 + 1.5, 1.8 + 0.5]))


def test_the_endpoint_gradient_holds_weights_and_n_once():
    rollout = cached_rollout(3, size=2)
    endpoint = rollout.state(3).requires_grad_()
    weights = torch.tensor([0.5, 3.0], dtype=torch.float64)
    surrogate = Surrogate((), endpoint, weights, rollout)
    value = endpoint.flatten(1).sum(1).sin()
    credit = Direct(margin="none").credit(scores_of({"a": value}, count=10), surrogate)
    slope = endpoint.detach().flatten(1).sum(1).cos()
    expected = -(weights * slope / 10).view(2, 1, 1).expand(2, 3, 2)
    torch.testing.assert_close(credit.endpoint_gradient, expected)
    assert credit.loss == pytest.approx(float(-(weights * value.detach()).sum() / 10))


def test_a_sample_beyond_the_margin_has_no_gradient():
    rollout = cached_rollout(3, size=2)
    endpoint = rollout.state(3).requires_grad_()
    value = (
        endpoint.flatten(1).mean(1) * 0
        + torch.tensor([0.4, 0.6])
        + endpoint.flatten(1).mean(1) * 1e-3
    )
    credit = Direct(margin=0.5).credit(
        scores_of({"a": value}), Surrogate((), endpoint, None, rollout)
    )
    assert credit.endpoint_gradient[0].abs().sum() > 0
    assert credit.endpoint_gradient[1].abs().sum() == 0


def test_a_reward_without_a_margin_is_named():
    with pytest.raises(ValueError, match="reward 'a' states no margin"):
        hinge(scores_of({"a": torch.zeros(1)}), "stated")
    with pytest.raises(ValueError, match=r"margin names \['x'\], the rewards are \['a'\]"):
        hinge(scores_of({"a": torch.zeros(1)}), {"x": 1.0})


def test_margins_are_checked_in_the_run_file():
    with pytest.raises(InputError, match="got 'state'"):
        headwater.load("algorithm", "direct", {"margin": "state"})
    assert headwater.load("algorithm", "direct", {"margin": 1}).margin == 1.0
