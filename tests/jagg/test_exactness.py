"""Where JAGG is exact, where it is not, and its sums against a joint autograd graph."""

from __future__ import annotations

import attrs
import pytest
import torch
from jagg_toys import (
    LinearFlow,
    clear,
    exact_gradient,
    gradient_of,
    on_a_chord,
    toy_rollout,
    update,
    upstream,
    vector,
)

from headwater.engine import MODES
from headwater.testing.toy_flow import ToyFlow, relative
from headwater_jagg import Jagg

EXACT = 1e-10
"""Sums of a hundred terms in another order: 1e-14, with room for cancellation."""


def with_trained(rollout, trained):
    return attrs.evolve(rollout, batch=attrs.evolve(rollout.batch, trained_steps=trained))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", [3, 4, 5, 6])
def test_linear_velocities_on_a_chord_give_the_exact_gradient(window, mode) -> None:
    flow, rollout = LinearFlow(), on_a_chord()
    found = gradient_of(Jagg(window=window, routed=1.0), flow, rollout, mode=mode)
    assert relative(found, exact_gradient(flow, rollout)) < EXACT


@pytest.mark.parametrize("window", [3, 4, 5, 6])
def test_states_off_the_chord_do_not(window) -> None:
    flow, rollout = LinearFlow(), on_a_chord(noise=0.3)
    found = gradient_of(Jagg(window=window, routed=1.0), flow, rollout)
    assert relative(found, exact_gradient(flow, rollout)) > 1e-3


def test_index_linear_weights_would_not_be_exact_on_an_uneven_grid() -> None:
    """So the tests above tell sigmas from indices."""
    flow, rollout = LinearFlow(), on_a_chord()
    even = attrs.evolve(rollout, sigmas=torch.linspace(1, 0, 13, dtype=torch.float64))
    states = attrs.evolve(even, latents=rollout.latents)
    assert (
        relative(gradient_of(Jagg(routed=1.0), flow, states), exact_gradient(flow, states)) > 1e-3
    )


@pytest.mark.parametrize("mode", MODES)
def test_trained_steps_need_not_be_neighbours_nor_sorted(mode) -> None:
    flow, rollout = LinearFlow(), with_trained(on_a_chord(), (11, 0, 1, 4, 9, 6, 7))
    found = gradient_of(Jagg(window=5, routed=1.0), flow, rollout, mode=mode)
    assert relative(found, exact_gradient(flow, rollout)) < EXACT


@pytest.mark.parametrize("basis", ["linear", "calibrated"])
@pytest.mark.parametrize("nodes", [(1, 2), (0, 2), (0, 2, -1), (-4, -2)])
def test_linear_velocities_allow_any_nodes(nodes, basis) -> None:
    flow, rollout = LinearFlow(), on_a_chord()
    found = gradient_of(Jagg(nodes=nodes, routed=1.0, basis=basis), flow, rollout)
    assert relative(found, exact_gradient(flow, rollout)) < EXACT


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [(3,), (3, 5), (0, 1, 2, 3, 4, 5)])
def test_groups_of_one_and_two_are_exact_on_any_network(steps, mode) -> None:
    flow = ToyFlow()
    rollout = toy_rollout(flow, trained=steps)
    found = gradient_of(Jagg(window=2, routed=1.0), flow, rollout, mode=mode)
    assert relative(found, exact_gradient(flow, rollout)) < EXACT


@pytest.mark.parametrize("mode", MODES)
def test_groups_that_are_not_routed_are_exact(mode) -> None:
    flow = ToyFlow()
    rollout = toy_rollout(flow)
    exact = exact_gradient(flow, rollout)
    assert relative(gradient_of(Jagg(routed=0.0), flow, rollout, mode=mode), exact) < EXACT
    assert relative(gradient_of(Jagg(routed=1.0), flow, rollout, mode=mode), exact) > 1e-2


def two_ends(flow, rollout, base, corr, first, last):
    """The paper's call: one joint backward from the two velocities of a group."""
    batch = rollout.batch
    ends = [
        flow.velocity(rollout.latents[i], rollout.sigmas[i].expand(len(batch)), batch.conditioning)
        for i in (first, last)
    ]
    torch.autograd.backward(ends, [base, corr])


@pytest.mark.parametrize("middle", ["recompute", "cached"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("interpolate", ["linear", "none", "sum"])
def test_the_update_is_the_hand_written_joint_backward_of_each_form(
    interpolate, mode, middle
) -> None:
    """Steps 0-3 and 4-7 by the composites of the paper and its ablations; 8 alone, exact."""
    flow = ToyFlow()
    rollout = toy_rollout(flow)
    estimator = Jagg(routed=1.0, interpolate=interpolate, middle=middle)
    found = gradient_of(estimator, flow, rollout, mode=mode)
    clear(flow)
    for first in (0, 4):
        steps = range(first, first + 4)
        s = [upstream(flow, rollout, i) for i in steps]
        t = [float(rollout.sigmas[i]) for i in steps]
        a = [(t[0] - t_j) / (t[0] - t[3]) for t_j in t]
        if interpolate == "linear":
            base = sum((1 - a[j]) * s[j] for j in range(4))
            corr = sum(a[j] * s[j] for j in range(4))
        elif interpolate == "none":
            base, corr = s[0], s[3]
        else:
            base = corr = s[0] + s[1] + s[2] + s[3]
        two_ends(flow, rollout, base, corr, first, first + 3)
    expected = vector(flow) + exact_gradient(flow, rollout, [8])
    assert relative(found, expected) < EXACT


def test_the_three_forms_differ() -> None:
    flow = ToyFlow()
    rollout = toy_rollout(flow)
    linear, none, sum_ = (
        gradient_of(Jagg(routed=1.0, interpolate=form), flow, rollout)
        for form in ("linear", "none", "sum")
    )
    assert min(relative(none, linear), relative(sum_, linear), relative(none, sum_)) > 1e-2


@pytest.mark.parametrize("middle", ["recompute", "cached"])
def test_fresh_velocities_take_w_and_cached_ones_two_forwards(middle) -> None:
    """W + 4 units a group of W, or 6; a group of one takes 3 either way."""
    flow = ToyFlow(guidance=1.0)
    rollout = toy_rollout(flow)
    _, work = update(Jagg(routed=1.0, middle=middle), flow, rollout)
    assert work.backwards == 2 + 2 + 1
    assert work.forwards == (4 + 4 + 1 if middle == "recompute" else 2 + 2 + 1)
    assert work.carried is None
