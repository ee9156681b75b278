"""What the engine evaluates, keeps and hands on: no more than the design allows."""

from __future__ import annotations

import pytest
import torch
from group_kinds import KINDS, N, endpoint_cotangent, make_group, ones, surrogate_of
from torch import Tensor
from toy_upstreams import DownhillUpstream, PerStepEnergy

import headwater.engine as engine_module
from headwater.engine import MODES, Engine, backpropagate, evaluate
from headwater.testing.toy_flow import ToyFlow


@pytest.mark.parametrize("mode", MODES)
def test_only_the_input_of_a_coupled_groups_first_step_requires_a_gradient(
    flow, rollout, mode, monkeypatch
) -> None:
    seen: list[dict[int, bool]] = []

    def spy(*arguments):
        found = evaluate(*arguments)
        seen.append({step: x.requires_grad for step, (x, _) in found.items()})
        return found

    monkeypatch.setattr(engine_module, "evaluate", spy)
    g = endpoint_cotangent(rollout)
    bridge = KINDS["bridge"]
    backpropagate(flow, rollout, surrogate_of(bridge, rollout), DownhillUpstream(), g, mode)
    flags = {step: flag for one in seen for step, flag in one.items()}
    assert flags == {1: False, 2: False, 3: True, 5: False}


@pytest.mark.parametrize("mode", ["stream", "joint"])
@pytest.mark.parametrize("kind", ["sparse", "every step alone, uncoupled"])
def test_an_uncoupled_evaluation_is_handed_a_constant_state(flow, rollout, kind, mode) -> None:
    seen: list[bool] = []

    class Watching(ToyFlow):
        def velocity(self, x, sigma, conditioning):
            seen.append(x.requires_grad)
            return super().velocity(x, sigma, conditioning)

    watching = Watching()
    g = endpoint_cotangent(rollout)
    surrogate = surrogate_of(KINDS[kind], rollout)
    backpropagate(watching, rollout, surrogate, DownhillUpstream(), g, mode)
    assert seen == [False] * sum(len(group.active) for group in KINDS[kind])


@pytest.mark.parametrize("mode", MODES)
def test_a_coupling_of_zero_hands_on_the_very_tensor_it_was_given(flow, rollout, mode) -> None:
    (group,) = KINDS["sparse"]
    g = endpoint_cotangent(rollout)
    cotangents = torch.ones(3, *g.shape, dtype=g.dtype)
    found = Engine(flow, mode).backward(group, rollout, cotangents, g, {})
    assert found is g
    assert torch.equal(g, endpoint_cotangent(rollout))


def test_a_coupling_leaves_the_carried_tensor_of_the_caller_as_it_was(flow, rollout) -> None:
    g = endpoint_cotangent(rollout)
    surrogate = surrogate_of(KINDS["every step alone, coupled"], rollout)
    backpropagate(flow, rollout, surrogate, DownhillUpstream(), g)
    assert torch.equal(g, endpoint_cotangent(rollout))


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_is_evaluated_twice_and_the_counters_say_what_was_done(rollout, kind) -> None:
    calls: list[float] = []

    class Counting(ToyFlow):
        def velocity(self, x, sigma, conditioning):
            calls.append(float(sigma[0]))
            return super().velocity(x, sigma, conditioning)

    flow, groups = Counting(), KINDS[kind]
    surrogate = surrogate_of(groups, rollout)
    found = backpropagate(flow, rollout, surrogate, DownhillUpstream(), endpoint_cotangent(rollout))
    active = [float(rollout.sigmas[a]) for group in groups for a in group.active]
    assert sorted(calls) == sorted(active)
    assert (found.forwards, found.backwards) == (2 * len(active), 2 * len(active))

    calls.clear()
    found = backpropagate(flow, rollout, surrogate, PerStepEnergy())
    every = [float(rollout.sigmas[i]) for group in groups for i in group.steps]
    assert sorted(calls) == sorted(every)
    assert (found.forwards, found.backwards) == (2 * len(every), 2 * len(active))


def test_fused_evaluates_each_group_in_one_network_forward(rollout) -> None:
    sizes: list[int] = []

    class Measuring(ToyFlow):
        def velocity(self, x, sigma, conditioning):
            sizes.append(len(x))
            assert len(sigma) == len(x) == len(conditioning)
            return super().velocity(x, sigma, conditioning)

    surrogate = surrogate_of(KINDS["signed rows, three groups"], rollout)
    g = endpoint_cotangent(rollout)
    backpropagate(Measuring(), rollout, surrogate, DownhillUpstream(), g, "fused")
    assert sizes == [3, 6, 6]


def test_in_stream_no_more_is_saved_for_backward_at_once_when_more_steps_are_active(
    flow, rollout
) -> None:
    """The largest number of live saved elements; joint shows that the measure can grow."""

    def peak(active: tuple[int, ...], mode) -> int:
        groups = (make_group(range(N), active, ones, 0.0),)
        return peak_of_saved_elements(flow, rollout, groups, mode)

    one = peak((6,), "stream")
    assert peak((1, 3, 4, 5, 6), "stream") == one
    assert peak((1, 3, 4, 5, 6), "joint") >= 4 * one


def peak_of_saved_elements(flow, rollout, groups, mode) -> int:
    live, most = 0, 0

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal live, most
            self.tensor, self.size = tensor, tensor.numel()
            live += self.size
            most = max(most, live)

        def __del__(self) -> None:
            nonlocal live
            live -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        g = endpoint_cotangent(rollout)
        backpropagate(flow, rollout, surrogate_of(groups, rollout), DownhillUpstream(), g, mode)
    return most
