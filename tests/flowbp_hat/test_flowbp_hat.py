"""`flowbp-hat`: its basis against numerical quadrature, its gradient against a joint graph."""

from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from headwater.composition import compose
from headwater.engine import backpropagate
from headwater.testing.cached import build, cached_rollout, shifted
from headwater.types import Credit
from headwater_direct import Direct
from headwater_flowbp_hat.estimator import FlowBPHat
from headwater_flowbp_hat.hats import hat_basis, late_biased, strata

EXAMPLE = Path(__file__).parents[2] / "contrib" / "flowbp-hat" / "examples" / "flowbp-hat.toml"


@pytest.mark.parametrize("active", [[0, 3, 7], [2, 4], [5], [0, 1, 2, 3, 4, 5, 6, 7], [6, 7]])
def test_a_column_is_the_average_of_the_hats_over_its_cell(active):
    """numpy's interpolation on 2,000 midpoints of each cell."""
    sigmas = [float(s) for s in shifted(8)]
    found = hat_basis(active, range(8), sigmas).numpy()
    nodes = [sigmas[a] for a in active][::-1]  # np.interp wants them rising
    for row in range(len(active)):
        values = np.eye(len(active))[row][::-1]
        for i in range(8):
            edges = np.linspace(sigmas[i + 1], sigmas[i], 2001)
            points = (edges[1:] + edges[:-1]) / 2
            assert found[row, i] == pytest.approx(np.interp(points, nodes, values).mean(), abs=1e-9)


def test_no_step_is_dropped_and_an_active_one_is_not_only_its_own():
    basis = hat_basis([1, 4, 6], range(9), [float(s) for s in shifted(9)])
    torch.testing.assert_close(basis.sum(dim=0), torch.ones(9, dtype=torch.float64))
    assert (basis >= 0).all()


def test_strata_hold_one_step_each_and_every_step_is_drawn():
    generator = torch.Generator().manual_seed(0)
    drawn = [strata(10, 4, generator) for _ in range(400)]
    for active in drawn:
        for low, high, step in zip([0, 2, 5, 7], [2, 5, 7, 10], active, strict=True):
            assert low <= step < high
    assert {step for active in drawn for step in active} == set(range(10))
    assert strata(5, 5, generator) == [0, 1, 2, 3, 4]


def test_a_late_bias_draws_late_steps_more_often():
    generator = torch.Generator().manual_seed(0)
    counts = np.zeros(6)
    for _ in range(6000):
        (step,) = late_biased(6, 1, 2.0, generator)
        counts[step] += 1
    wanted = np.arange(1, 7) ** 2.0
    # Four standard deviations of a share of 6,000 draws are at most .026.
    assert counts / 6000 == pytest.approx(wanted / wanted.sum(), abs=0.026)


class Field(torch.nn.Module):
    """A velocity with weights, differentiable in x too."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.w = torch.nn.Parameter(torch.randn(6, 6, generator=generator, dtype=torch.float64) / 3)

    def velocity(self, x, sigma, conditioning):
        flat = torch.tanh(x.flatten(1) @ self.w) * (1 + sigma.double())[:, None]
        return flat.view_as(x)


@pytest.mark.parametrize("settings", [{}, {"coupling": 0.0}, {"k": 1}, {"k": 9, "coupling": 1.0}])
def test_the_gradient_is_that_of_a_joint_graph(settings):
    """One graph: x_N = x_j - sum_i h_i sum_a Phi[a, i] v_a, and x_j from the steps before it
    through a joint of which only a fraction carries gradient."""
    field, rollout = Field(), cached_rollout(9)
    estimator = FlowBPHat(**{"coupling": 0.4, **settings})
    surrogate = build(estimator, rollout, seed=5)
    g = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    credit = Credit(endpoint_gradient=g)
    backpropagate(field, rollout, surrogate, Direct(margin="none"), g, "stream", credit)
    through_engine, field.w.grad = field.w.grad, None

    x = None
    for group in surrogate.groups:
        start = rollout.state(group.steps[0])
        x = start if x is None else start + (x - x.detach())
        # The input of the joint's own velocity carries alpha of the gradient, the path all of it.
        into = start + group.coupling * (x - x.detach())
        for row, a in enumerate(group.active):
            at = into if a == group.steps[0] else rollout.state(a)
            v = field.velocity(at, rollout.sigmas[a].expand(2), None)
            mass = sum(
                float(group.basis[row, c]) * rollout.step_size(i) for c, i in enumerate(group.steps)
            )
            x = x - mass * v
    (x * g).sum().backward()
    torch.testing.assert_close(through_engine, field.w.grad, rtol=1e-10, atol=1e-12)


def test_residuals_vanish_where_the_velocity_is_linear_in_sigma():
    """The trapezoid rule through active steps is exact for it, up to the last active step."""
    rollout = cached_rollout(6)
    sigmas, x = rollout.sigmas.double(), rollout.latents[0]
    states = [x]
    slope = torch.ones(2, 3, 2, dtype=torch.float64)
    for i in range(6):
        # Cell averages of v = slope sigma: what a fine sampler would do on each cell.
        middle, h = (sigmas[i] + sigmas[i + 1]) / 2, rollout.step_size(i)
        states.append(states[-1] - h * middle * slope)
    velocities = torch.stack([float(s) * slope for s in sigmas[:-1]])
    linear = attrs.evolve(rollout, latents=torch.stack(states), velocities=velocities)
    estimator = FlowBPHat(k=6, coupling=0.5)
    found = build(estimator, linear).diagnostics
    last = float(sigmas[5])  # beyond the last node the hat is constant: h (sigma - sigma / 2)
    assert found["d_0"] == pytest.approx(last * last / 2, rel=1e-6)
    # The first half ends at the joint, whose own velocity belongs to the second.
    gap = float(sigmas[2] - sigmas[3])
    assert found["d_j"] == pytest.approx(gap * gap / 2, rel=1e-6)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="k = 12 active steps of a rollout of 9"):
        build(FlowBPHat(k=12), cached_rollout(9))
    with pytest.raises(ValueError, match="late_bias is read only"):
        FlowBPHat(late_bias=1.0)


def test_the_example_composes():
    assert compose(EXAMPLE).estimator.entry.name == "flowbp-hat"
