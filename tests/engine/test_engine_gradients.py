"""The engine against joint autograd graphs, for every kind of group and every mode.

Tolerance 1e-12 relative in float64: the same sums in another order, a few hundred additions of
rounding 1e-16 each.
"""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor
from toy_flow import (
    ToyFlow,
    gradient_vector,
    make_batch,
    relative,
    roll_out,
    zero_gradients,
)
from toy_upstreams import DownhillUpstream, PerStepEnergy

import headwater.engine as engine_module
from headwater.engine import MODES, Engine, backpropagate, evaluate
from headwater.types import Group, Rollout, Surrogate

EXACT = 1e-12
N = 7


def ones(active: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    return torch.ones(len(active), len(steps), dtype=torch.float64)


def delta(active: tuple[int, ...], steps: tuple[int, ...], factor: float = 1.0) -> Tensor:
    return torch.tensor([[factor * (a == i) for i in steps] for a in active]).double()


def signed(active: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    """No symmetry, rows of both signs: a swapped row or a transposed basis shows."""
    generator = torch.Generator().manual_seed(len(steps) + 10 * len(active))
    return torch.randn(len(active), len(steps), generator=generator, dtype=torch.float64)


def single(step: int, coupling: float) -> Group:
    return Group((step,), (step,), torch.ones(1, 1, dtype=torch.float64), coupling)


def make_group(steps: range, active: tuple[int, ...], basis, coupling: float) -> Group:
    return Group(tuple(steps), active, basis(active, tuple(steps)), coupling)


KINDS: dict[str, tuple[Group, ...]] = {
    "every step alone, coupled": tuple(single(i, 1.0) for i in range(N)),
    "every step alone, uncoupled": tuple(single(i, 0.0) for i in range(N)),
    "the last three, first uncoupled": (single(4, 0.0), single(5, 1.0), single(6, 1.0)),
    "two leaps": (
        make_group(range(1, 4), (1,), ones, 0.0),
        make_group(range(4, 7), (4,), ones, 0.3),
    ),
    "two leaps, both coupled": (
        make_group(range(4), (0,), ones, 0.6),
        make_group(range(4, 7), (4,), ones, 0.3),
    ),
    "sparse": (make_group(range(N), (1, 4, 6), lambda a, s: delta(a, s, 1.8), 0.0),),
    "bridge": (
        make_group(range(3), (1, 2), delta, 0.0),
        make_group(range(3, 7), (3, 5), delta, 0.5),
    ),
    "signed rows, three groups": (
        make_group(range(2), (0, 1), signed, 1.0),
        make_group(range(2, 5), (2, 4), signed, 0.7),
        make_group(range(5, 7), (5,), signed, 0.2),
    ),
}


@pytest.fixture(scope="module")
def flow() -> ToyFlow:
    return ToyFlow()


@pytest.fixture(scope="module")
def rollout(flow: ToyFlow) -> Rollout:
    return roll_out(flow, make_batch(3, N))


@pytest.fixture(autouse=True)
def no_gradient_left(flow: ToyFlow) -> None:
    zero_gradients(flow)


def endpoint_cotangent(rollout: Rollout) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(rollout.latents[0].shape, generator=generator).double()


def surrogate_of(groups: tuple[Group, ...], rollout: Rollout, *, cached: bool = False) -> Surrogate:
    return Surrogate(groups, rollout.latents[-1], None, rollout, cached_velocities=cached)


def joint_graph(
    flow: ToyFlow, rollout: Rollout, groups: tuple[Group, ...], g: Tensor
) -> tuple[Tensor, Tensor]:
    """One graph over all groups: connectors hold the cached value, couplings discount.

    Returns: the parameters' gradient vector, and the gradient at the start of the first group.
    """
    start = rollout.latents[groups[0].steps[0]].clone().requires_grad_()
    x = start
    batch = rollout.batch
    for group in groups:
        discounted = group.coupling * x + (1 - group.coupling) * x.detach()
        predicted = x
        for row, a in enumerate(group.active):
            state = discounted if a == group.steps[0] else rollout.latents[a]
            v = flow.velocity(state, rollout.sigmas[a].expand(len(batch)), batch.conditioning)
            for column, i in enumerate(group.steps):
                h = rollout.sigmas[i] - rollout.sigmas[i + 1]
                predicted = predicted - h * group.basis[row, column] * v
        cached = rollout.latents[group.steps[-1] + 1]
        x = predicted + (cached - predicted).detach()
    (x * g).sum().backward()
    assert start.grad is not None
    return gradient_vector(flow), start.grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_mode_gives_the_gradient_of_the_joint_graph(flow, rollout, kind, mode) -> None:
    g = endpoint_cotangent(rollout)
    expected, at_start = joint_graph(flow, rollout, KINDS[kind], g)
    zero_gradients(flow)
    surrogate = surrogate_of(KINDS[kind], rollout)
    found = backpropagate(flow, rollout, surrogate, DownhillUpstream(), g, mode)
    assert relative(gradient_vector(flow), expected) < EXACT
    assert relative(found.carried, at_start) < EXACT


def per_step_joint_graph(
    flow: ToyFlow, rollout: Rollout, groups: tuple[Group, ...], objective: PerStepEnergy
) -> Tensor:
    """sum over groups and active steps of < (Phi s)_a, v_a >, all graphs alive at once."""
    batch = rollout.batch
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        v = [
            flow.velocity(
                rollout.latents[i], rollout.sigmas[i].expand(len(batch)), batch.conditioning
            )
            for i in group.steps
        ]
        s = [objective.upstream_of(i, v_i.detach()) for i, v_i in zip(group.steps, v, strict=True)]
        for row, a in enumerate(group.active):
            c = sum(group.basis[row, column] * s_i for column, s_i in enumerate(s))
            total = total + (c * v[group.steps.index(a)]).sum()
    total.backward()
    return gradient_vector(flow)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_per_step_upstream_gives_the_joint_gradient_with_kept_or_cached_velocities(
    flow, rollout, kind, mode, cached
) -> None:
    objective = PerStepEnergy()
    expected = per_step_joint_graph(flow, rollout, KINDS[kind], objective)
    zero_gradients(flow)
    surrogate = surrogate_of(KINDS[kind], rollout, cached=cached)
    found = backpropagate(flow, rollout, surrogate, objective, mode=mode)
    assert relative(gradient_vector(flow), expected) < EXACT
    assert found.carried is None and objective.carried_seen == {None}


def test_a_fresh_upstream_sees_the_weights_of_now_and_a_cached_one_those_of_the_rollout() -> None:
    flow = ToyFlow(seed=3)
    rollout = roll_out(flow, make_batch(2, N))
    with torch.no_grad():
        flow.network.B.mul_(1.5)
    groups = KINDS["every step alone, uncoupled"]
    expected = per_step_joint_graph(flow, rollout, groups, PerStepEnergy())
    zero_gradients(flow)
    backpropagate(flow, rollout, surrogate_of(groups, rollout), PerStepEnergy())
    assert relative(gradient_vector(flow), expected) < EXACT
    zero_gradients(flow)
    backpropagate(flow, rollout, surrogate_of(groups, rollout, cached=True), PerStepEnergy())
    assert relative(gradient_vector(flow), expected) > 0.05


def test_a_coupling_of_one_over_every_step_is_plain_backpropagation_to_the_noise(
    flow, rollout
) -> None:
    """carried at the end of the engine is dL/dx_0 of the plain differentiable rollout."""
    g = endpoint_cotangent(rollout)
    batch = rollout.batch
    start = rollout.latents[0].clone().requires_grad_()
    x = start
    for i in range(N):
        h = rollout.sigmas[i] - rollout.sigmas[i + 1]
        x = x - h * flow.velocity(x, rollout.sigmas[i].expand(len(batch)), batch.conditioning)
    (x * g).sum().backward()
    expected = gradient_vector(flow)
    zero_gradients(flow)
    surrogate = surrogate_of(KINDS["every step alone, coupled"], rollout)
    found = backpropagate(flow, rollout, surrogate, DownhillUpstream(), g)
    assert relative(gradient_vector(flow), expected) < EXACT
    assert relative(found.carried, start.grad) < EXACT


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


@pytest.mark.parametrize("mode", MODES)
def test_gradients_accumulate_onto_what_is_there(flow, rollout, mode) -> None:
    g = endpoint_cotangent(rollout)
    surrogate = surrogate_of(KINDS["bridge"], rollout)
    backpropagate(flow, rollout, surrogate, DownhillUpstream(), g, mode)
    once = gradient_vector(flow)
    zero_gradients(flow)
    for parameter in flow.network.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    backpropagate(flow, rollout, surrogate, DownhillUpstream(), g, mode)
    assert relative(gradient_vector(flow), once + 0.25) < EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2])
def test_micro_batches_add_up_to_the_whole(flow, rollout, kind, size) -> None:
    g = endpoint_cotangent(rollout)
    whole = surrogate_of(KINDS[kind], rollout)
    backpropagate(flow, rollout, whole, DownhillUpstream(), g)
    expected = gradient_vector(flow)
    zero_gradients(flow)
    for start in range(0, 3, size):
        rows = list(range(start, min(start + size, 3)))
        part = roll_out(flow, rollout.batch.index(rows))
        surrogate = surrogate_of(KINDS[kind], part)
        backpropagate(flow, part, surrogate, DownhillUpstream(), g[rows])
    assert relative(gradient_vector(flow), expected) < EXACT


def test_the_surrogates_own_rollout_is_what_its_groups_index(flow, rollout) -> None:
    other = roll_out(flow, rollout.batch.index([2, 0]))
    g = endpoint_cotangent(rollout)[:2]
    groups = KINDS["two leaps"]
    expected, _ = joint_graph(flow, other, groups, g)
    zero_gradients(flow)
    backpropagate(flow, rollout, surrogate_of(groups, other), DownhillUpstream(), g)
    assert relative(gradient_vector(flow), expected) < EXACT


def test_a_rollout_without_velocities_gives_the_same_per_step_gradient(flow, rollout) -> None:
    """An Euler step gives v = (x_i - x_{i+1}) / h back; 1e-11, for the quotient loses digits."""
    bare = attrs.evolve(rollout, velocities=None)
    groups = KINDS["signed rows, three groups"]
    backpropagate(flow, rollout, surrogate_of(groups, rollout, cached=True), PerStepEnergy())
    expected = gradient_vector(flow)
    zero_gradients(flow)
    backpropagate(flow, bare, surrogate_of(groups, bare, cached=True), PerStepEnergy())
    assert relative(gradient_vector(flow), expected) < 1e-11
