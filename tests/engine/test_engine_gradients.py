"""The engine against joint autograd graphs, for every kind of group and every mode.

Tolerance 1e-12 relative in float64: the same sums in another order, a few hundred additions of
rounding 1e-16 each.
"""

from __future__ import annotations

import attrs
import pytest
import torch
from group_kinds import KINDS, N, endpoint_cotangent, surrogate_of
from torch import Tensor
from toy_upstreams import DownhillUpstream, PerStepEnergy

from headwater.engine import MODES, backpropagate
from headwater.testing.toy_flow import (
    ToyFlow,
    gradient_vector,
    make_batch,
    relative,
    roll_out,
    zero_gradients,
)
from headwater.types import Group, Rollout

EXACT = 1e-12


@pytest.fixture(autouse=True)
def no_gradient_left(flow: ToyFlow) -> None:
    zero_gradients(flow)


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
