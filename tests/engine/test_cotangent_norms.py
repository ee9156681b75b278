"""What goes backward at each step, beside the gradient that autograd leaves in the velocities."""

import pytest
from group_kinds import KINDS, endpoint_cotangent, surrogate_of
from toy_upstreams import DownhillUpstream

from headwater.engine import MODES, backpropagate
from headwater.testing.toy_flow import zero_gradients


def velocity_gradients(flow, rollout, groups, g):
    """Squared norm of dL/dv at each active step, from one graph over all groups."""
    batch, kept = rollout.batch, []
    x = rollout.latents[groups[0].steps[0]].clone().requires_grad_()
    for group in groups:
        first = group.coupling * x + (1 - group.coupling) * x.detach()
        predicted = x
        for row, a in enumerate(group.active):
            state = first if a == group.steps[0] else rollout.latents[a]
            v = flow.velocity(state, rollout.sigmas[a].expand(len(batch)), batch.conditioning)
            v.retain_grad()
            kept.append((a, v))
            for column, i in enumerate(group.steps):
                h = rollout.sigmas[i] - rollout.sigmas[i + 1]
                predicted = predicted - h * group.basis[row, column] * v
        cached = rollout.latents[group.steps[-1] + 1]
        x = predicted + (cached - predicted).detach()
    (x * g).sum().backward()
    return {a: float((v.grad**2).sum()) for a, v in kept}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_squares_are_those_of_the_gradient_in_each_velocity(flow, rollout, kind, mode):
    g = endpoint_cotangent(rollout)
    expected = velocity_gradients(flow, rollout, KINDS[kind], g)
    found = backpropagate(
        flow, rollout, surrogate_of(KINDS[kind], rollout), DownhillUpstream(), g, mode
    )
    # Float64; the carried gradient went through up to seven steps of rounding.
    assert found.squares == pytest.approx(expected, rel=1e-10)
    assert all(square > 0 for square in expected.values())
    zero_gradients(flow)
