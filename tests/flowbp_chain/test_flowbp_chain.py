"""`flowbp-chain`: the mean over all its draws against autograd through the sampler itself."""

from itertools import pairwise, product
from math import prod
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from headwater.composition import compose
from headwater.engine import MODES, backpropagate
from headwater.testing import EstimatorContract
from headwater.testing.cached import build, cached_rollout, shifted
from headwater.types import Credit, Surrogate
from headwater_direct import Direct
from headwater_flowbp_chain.estimator import FlowBPChain
from headwater_flowbp_chain.leaps import chained, draw, edges

EXAMPLE = Path(__file__).parents[2] / "contrib" / "flowbp-chain" / "examples" / "flowbp-chain.toml"
N = 6


class Field(torch.nn.Module):
    """A velocity with weights, differentiable in x too, uneven in sigma."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.w = torch.nn.Parameter(torch.randn(6, 6, generator=generator, dtype=torch.float64))

    def velocity(self, x, sigma, conditioning):
        flat = torch.tanh(x.flatten(1) @ self.w) * (1 + sigma.double())[:, None]
        return flat.view_as(x)


def sampled(field, steps=N):
    """Euler through the field, float64: the cached states are the sampler's own."""
    rollout = cached_rollout(steps)
    x, states, velocities = rollout.latents[0], [rollout.latents[0]], []
    with torch.no_grad():
        for i in range(steps):
            v = field.velocity(x, rollout.sigmas[i].expand(2), None)
            x = x - rollout.step_size(i) * v
            states.append(x)
            velocities.append(v)
    return attrs.evolve(rollout, latents=torch.stack(states), velocities=torch.stack(velocities))


def endpoint_gradient():
    return torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def through_engine(field, rollout, groups, mode="stream"):
    g = endpoint_gradient()
    surrogate = Surrogate(tuple(groups), rollout.state(rollout.steps), None, rollout)
    field.w.grad = None
    credit = Credit(endpoint_gradient=g)
    backpropagate(field, rollout, surrogate, Direct(margin="none"), g, mode, credit)
    return field.w.grad.clone()


def mean_over_draws(field, rollout, k, coupling):
    """Every choice of one step a leap, weighted by its probability."""
    sigmas = [float(s) for s in rollout.sigmas]
    bounds = edges(rollout.steps, k)
    total, whole = torch.zeros_like(field.w), 0.0
    for active in product(*(range(first, end) for first, end in pairwise(bounds))):
        chance = prod(
            rollout.step_size(a) / (sigmas[first] - sigmas[end])
            for a, (first, end) in zip(active, pairwise(bounds), strict=True)
        )
        whole += chance
        gradient = through_engine(field, rollout, chained(sigmas, bounds, active, coupling))
        total += chance * gradient
    assert whole == pytest.approx(1, abs=1e-12)
    return total


def through_the_sampler(field, rollout, joints, coupling):
    """One autograd graph of the sampler. Inputs within a leap are cut; at a joint, the first step
    of a leap, a fraction of the gradient of every later input of that leap flows on."""
    x = rollout.state(0)
    for first, end in pairwise([*joints, rollout.steps]):
        # What enters the leap, with the fraction of its gradient that nested terms carry.
        nested = coupling * (x - x.detach())
        for i in range(first, end):
            v = field.velocity(rollout.state(i) + nested, rollout.sigmas[i].expand(2), None)
            x = x - rollout.step_size(i) * v
    return torch.autograd.grad((x * endpoint_gradient()).sum(), field.w)[0]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("coupling", [0.0, 0.3, 1.0])
def test_the_mean_over_all_draws_is_the_gradient_with_every_step_in_it(k, coupling):
    field = Field()
    rollout = sampled(field)
    wanted = through_the_sampler(field, rollout, edges(N, k)[:-1], coupling)
    found = mean_over_draws(field, rollout, k, coupling)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_without_coupling_the_mean_is_that_of_all_steps_whatever_the_leaps():
    field = Field()
    rollout = sampled(field)
    wanted = torch.zeros_like(field.w)
    for i in range(N):
        v = field.velocity(rollout.state(i), rollout.sigmas[i].expand(2), None)
        s = -rollout.step_size(i) * endpoint_gradient()
        wanted += torch.autograd.grad(v, field.w, s)[0]
    for k in (1, 2, 3, 6):
        found = mean_over_draws(field, rollout, k, 0.0)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_a_leap_a_step_with_full_coupling_is_full_backpropagation():
    """Autograd through the plain sampler, no cached state in it."""
    field = Field()
    rollout = sampled(field)
    x = rollout.state(0)
    for i in range(N):
        x = x - rollout.step_size(i) * field.velocity(x, rollout.sigmas[i].expand(2), None)
    wanted = torch.autograd.grad((x * endpoint_gradient()).sum(), field.w)[0]
    found = through_engine(field, rollout, build(FlowBPChain(k=N), rollout).groups)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    damped = through_engine(field, rollout, build(FlowBPChain(k=N, coupling=0.5), rollout).groups)
    assert float((damped - wanted).norm() / wanted.norm()) > 1e-3


def test_fewer_leaps_lack_the_nested_gradient_within_one():
    """What the README says is missing: the mean is not full backpropagation's."""
    field = Field()
    rollout = sampled(field)
    full = through_the_sampler(field, rollout, range(N), 1.0)
    off = [float((mean_over_draws(field, rollout, k, 1.0) - full).norm()) for k in (1, 2, 3, 6)]
    assert off == sorted(off, reverse=True)
    assert off[2] > 1e-2 * float(full.norm()) and off[3] < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_all_engine_modes_agree(mode):
    field = Field()
    rollout = sampled(field, 9)
    surrogate = build(FlowBPChain(k=4, coupling=0.6), rollout, seed=3)
    found = through_engine(field, rollout, surrogate.groups, mode)
    wanted = through_engine(field, rollout, surrogate.groups)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_step_is_drawn_in_proportion_to_its_size():
    sigmas = [float(s) for s in shifted(7)]
    bounds = edges(7, 2)
    generator = torch.Generator().manual_seed(0)
    counts = np.zeros(7)
    for _ in range(6000):
        counts[draw(sigmas, bounds, generator)] += 1
    for first, end in pairwise(bounds):
        wanted = -np.diff(sigmas[first : end + 1]) / (sigmas[first] - sigmas[end])
        # Four standard deviations of a share of 6,000 draws are at most .026.
        assert counts[first:end] / 6000 == pytest.approx(wanted, abs=0.026)


@pytest.mark.parametrize("point", [0.0, 1 - 2**-53])
def test_the_ends_of_a_leap_belong_to_its_first_and_last_step(point, monkeypatch):
    monkeypatch.setattr(
        torch, "rand", lambda count, **_: torch.full((count,), point, dtype=torch.float64)
    )
    sigmas, bounds = [float(s) for s in shifted(9)], edges(9, 4)
    wanted = bounds[:-1] if point == 0 else [end - 1 for end in bounds[1:]]
    assert draw(sigmas, bounds, torch.Generator()) == wanted


def test_leaps_share_the_steps_as_equally_as_they_can():
    assert edges(20, 4) == [0, 5, 10, 15, 20]
    assert edges(10, 4) == [0, 2, 5, 7, 10]
    assert edges(5, 5) == [0, 1, 2, 3, 4, 5]


def test_the_residual_is_how_far_the_leaps_miss_the_image():
    """A velocity that is constant in each leap is leapt exactly; another one is not."""
    rollout = cached_rollout(8)
    constant = rollout.velocities.clone()
    for first, end in pairwise(edges(8, 4)):
        constant[first:end] = constant[first]
    x, states = rollout.latents[0], [rollout.latents[0]]
    for i in range(8):
        x = x - rollout.step_size(i) * constant[i]
        states.append(x)
    leapt = attrs.evolve(rollout, latents=torch.stack(states), velocities=constant)
    assert build(FlowBPChain(), leapt).diagnostics["d_0"] < 1e-6  # sigmas are float32
    assert build(FlowBPChain(), rollout).diagnostics["d_0"] > 0.1


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="k = 12 leaps of a rollout of 9 steps"):
        build(FlowBPChain(k=12), cached_rollout(9))
    for settings in ({"k": 0}, {"coupling": 1.5}):
        with pytest.raises(ValueError, match="expected a number"):
            FlowBPChain(**settings)


def test_the_example_composes():
    assert compose(EXAMPLE).estimator.entry.name == "flowbp-chain"


class TestFlowBPChain(EstimatorContract):
    """What every estimator owes."""

    name = "flowbp-chain"
