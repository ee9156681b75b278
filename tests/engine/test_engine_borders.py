"""What the engine refuses, what may be replaced, and half types."""

from __future__ import annotations

import attrs
import pluggy
import pytest
import torch
from torch import Tensor, nn
from toy_upstreams import DownhillUpstream

from headwater import hookspecs
from headwater.engine import MODES, Engine, backpropagate, endpoint_gradient, run_groups
from headwater.markers import PROJECT, hookimpl
from headwater.testing.toy_flow import (
    LATENT,
    D,
    Network,
    ToyFlow,
    gradient_vector,
    make_batch,
    relative,
    roll_out,
    zero_gradients,
)
from headwater.types import Credit, Group, Rollout, Surrogate

N = 5


@pytest.fixture
def flow() -> ToyFlow:
    return ToyFlow(seed=1)


@pytest.fixture
def rollout(flow: ToyFlow) -> Rollout:
    return roll_out(flow, make_batch(3, N))


@pytest.mark.parametrize(
    ("steps", "active", "shape", "coupling", "message"),
    [
        ((0, 2, 1), (0,), (1, 3), 0.0, "increasing"),
        ((0, 1, 1), (0,), (1, 3), 0.0, "increasing"),
        ((0, 1, 2), (2, 0), (2, 3), 0.0, "increasing"),
        ((0, 1, 2), (1, 1), (2, 3), 0.0, "increasing"),
        ((0, 1, 2), (), (0, 3), 0.0, "increasing"),
        ((0, 1, 2), (3,), (1, 3), 0.0, r"\[3\]"),
        ((0, 1, 2), (0, 1), (3, 2), 0.0, r"\(2, 3\).*\(3, 2\)"),
        ((0, 1, 2), (1, 2), (2, 3), 0.5, "first step 0"),
    ],
)
def test_a_malformed_group_is_refused_with_what_came(
    steps, active, shape, coupling, message
) -> None:
    with pytest.raises(ValueError, match=message):
        Group(steps, active, torch.ones(shape), coupling)


def test_a_group_whose_first_step_is_idle_is_fine_without_coupling() -> None:
    group = Group((0, 1, 2), (1, 2), torch.ones(2, 3), 0.0)
    assert group.active == (1, 2)


def test_an_unknown_mode_is_refused(flow) -> None:
    with pytest.raises(ValueError, match="parallel"):
        Engine(flow, "parallel")


class Half:
    """float32 parameters, a float16 forward: as under autocast."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.network = nn.Module()
        self.network.inner = Network(2, torch.float32)
        self.calls = 0

    def velocity(self, x: Tensor, sigma: Tensor, conditioning) -> Tensor:
        self.calls += 1
        cast = {name: p.to(self.dtype) for name, p in self.network.inner.named_parameters()}
        inputs = (x.flatten(1).to(self.dtype), sigma, conditioning.positive.to(self.dtype))
        out = torch.func.functional_call(self.network.inner, cast, inputs)
        return out.view_as(x)

    def trainable(self) -> dict[str, nn.Parameter]:
        return dict(self.network.named_parameters())


class Full(ToyFlow):
    """The same function with the same numbers in float64, for reference."""

    def __init__(self) -> None:
        super().__init__(guidance=1.0)
        self.network = Network(2, torch.float32).double()


def half_case(dtype: torch.dtype) -> tuple[Half, Full, Rollout]:
    """States rounded to float16 values, so that both functions read the same numbers."""
    full = Full()
    rollout = roll_out(full, make_batch(2, N))
    latents = rollout.latents.to(torch.float16)
    return Half(dtype), full, attrs.evolve(rollout, latents=latents.float(), velocities=None)


GROUPS = (
    Group((0, 1), (0, 1), torch.tensor([[1.0, 0.4], [0.2, 1.0]]), 0.8),
    Group((2, 3, 4), (2, 3), torch.tensor([[1.0, 0.5, 0.3], [0.0, 1.0, 0.7]]), 0.5),
)


def compare_with_double(half: Half, full: Full, rollout: Rollout, groups, g: Tensor, mode="stream"):
    """Relative errors of the gradient and of carried against the same groups in float64."""
    surrogate = Surrogate(groups, rollout.latents[-1], None, rollout)
    found = backpropagate(half, rollout, surrogate, DownhillUpstream(), g, mode)
    double = attrs.evolve(rollout, latents=rollout.latents.double())
    same = Surrogate(groups, double.latents[-1], None, double)
    expected = backpropagate(full, double, same, DownhillUpstream(), g.double(), mode)
    error = relative(gradient_vector(half).double(), gradient_vector(full))
    return error, relative(found.carried.double(), expected.carried), found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("size", [1e-9, 1e-3, 1e7])
def test_float16_cotangents_of_any_size_neither_underflow_nor_overflow(size, coupled, mode) -> None:
    """1e-9 is below float16's smallest number, 1e7 above its largest.

    Coupled, the gradient at the first input is divided back too. Tolerance 1e-2: float16 has
    11 bits, 5e-4 a rounding, over some tens of roundings.
    """
    groups = GROUPS if coupled else tuple(attrs.evolve(group, coupling=0.0) for group in GROUPS)
    g = size * torch.randn(2, *LATENT, generator=torch.Generator().manual_seed(1))
    error, carried_error, _ = compare_with_double(*half_case(torch.float16), groups, g, mode)
    assert error < 1e-2
    assert carried_error < 1e-2


@pytest.mark.parametrize("mode", MODES)
def test_float16_scaling_leaves_earlier_gradients_as_they_were(mode) -> None:
    """2^20 is what a careless division by the scale would show in."""
    half, _, rollout = half_case(torch.float16)
    g = 1e-8 * torch.ones(2, *LATENT)
    group = attrs.evolve(GROUPS[0], coupling=0.0)
    surrogate = Surrogate((group,), rollout.latents[-1], None, rollout)
    backpropagate(half, rollout, surrogate, DownhillUpstream(), g, mode)
    once = gradient_vector(half)
    zero_gradients(half)
    for parameter in half.network.parameters():
        parameter.grad = torch.full_like(parameter, 1e-7)
    backpropagate(half, rollout, surrogate, DownhillUpstream(), g, mode)
    # The sum is rounded once to float32 (6e-8 of the larger part).
    assert relative(gradient_vector(half), once + 1e-7) < 1e-6


@pytest.mark.parametrize("mode", MODES)
def test_a_float16_cotangent_of_zero_gives_a_gradient_of_zero(mode) -> None:
    """A dropped sample is a zero cotangent and not a missing evaluation."""
    half, _, rollout = half_case(torch.float16)
    surrogate = Surrogate(GROUPS, rollout.latents[-1], None, rollout)
    g = torch.zeros(2, *LATENT)
    found = backpropagate(half, rollout, surrogate, DownhillUpstream(), g, mode)
    assert half.calls == (2 if mode == "fused" else 4)
    assert all(p.grad is not None and not p.grad.any() for p in half.network.parameters())
    assert not found.carried.any()


def test_a_float16_velocity_without_named_parameters_works_too() -> None:
    """`backpropagate` takes any object with a velocity; it has no `trainable` to ask for."""
    half, full, rollout = half_case(torch.float16)

    class Bare:
        velocity = half.velocity

    bare = Bare()
    bare.network = half.network
    g = 1e-9 * torch.ones(2, *LATENT)
    groups = tuple(attrs.evolve(group, coupling=0.0) for group in GROUPS)
    error, _, _ = compare_with_double(bare, full, rollout, groups, g)
    assert error < 1e-2


@pytest.mark.parametrize("mode", MODES)
def test_a_bfloat16_network_gives_the_gradient_to_its_own_precision(mode) -> None:
    """bfloat16 has 8 bits, 4e-3 a rounding; 5e-2 over some tens of them."""
    g = 1e-9 * torch.randn(2, *LATENT, generator=torch.Generator().manual_seed(1))
    case = half_case(torch.bfloat16)
    error, carried_error, found = compare_with_double(*case, GROUPS, g, mode)
    assert found.carried.dtype == torch.float32
    assert error < 5e-2
    assert carried_error < 5e-2


class RowsReversed:
    """An estimator's own `aggregate`: the basis upside down, times two."""

    @hookimpl
    def aggregate(self, group, upstream):
        return 2 * torch.tensordot(group.basis.flip(0), upstream, dims=1)


class CarriedTripled:
    """An estimator's own `backward`: no network work at all."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    @hookimpl
    def backward(self, group, cotangents, carried):
        self.seen.append((*group.active, *cotangents.shape))
        return 3 * carried


def run_with(flow: ToyFlow, rollout: Rollout, groups, g: Tensor, estimator: object):
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in (Engine(flow), DownhillUpstream(), estimator):
        manager.register(plugin)
    manager.check_pending()
    surrogate = Surrogate(groups, rollout.latents[-1], None, rollout)
    credit = Credit(endpoint_gradient=g)
    return run_groups(manager.hook, flow, surrogate, "endpoint", credit, g, "stream")


DOUBLE_GROUPS = tuple(attrs.evolve(group, basis=group.basis.double()) for group in GROUPS)


def test_an_estimators_own_aggregate_is_used_in_place_of_the_basis(flow, rollout) -> None:
    g = torch.ones(3, *LATENT, dtype=torch.float64)
    flipped = tuple(attrs.evolve(group, basis=2 * group.basis.flip(0)) for group in DOUBLE_GROUPS)
    surrogate = Surrogate(flipped, rollout.latents[-1], None, rollout)
    backpropagate(flow, rollout, surrogate, DownhillUpstream(), g)
    expected = gradient_vector(flow)
    zero_gradients(flow)
    run_with(flow, rollout, DOUBLE_GROUPS, g, RowsReversed())
    assert relative(gradient_vector(flow), expected) < 1e-12


def test_an_estimators_own_backward_replaces_the_engines(flow, rollout) -> None:
    g = torch.ones(3, *LATENT, dtype=torch.float64)
    own = CarriedTripled()
    found = run_with(flow, rollout, DOUBLE_GROUPS, g, own)
    assert torch.equal(found.carried, 9 * g)
    assert own.seen == [(2, 3, 2, 3, *LATENT), (0, 1, 2, 3, *LATENT)]
    assert all(parameter.grad is None for parameter in flow.network.parameters())


def test_the_endpoint_gradient_is_that_of_the_weighted_mean_over_the_planned_count(
    flow, rollout
) -> None:
    endpoint = rollout.latents[-1].clone().requires_grad_()
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    surrogate = Surrogate((), endpoint, weights, rollout)
    credit = endpoint_gradient((endpoint**2).flatten(1).sum(1), surrogate, count=8)
    expected = 2 * endpoint.detach() * weights.view(-1, 1, 1) / 8
    assert relative(credit.endpoint_gradient, expected) < 1e-15
    assert credit.count == 8
    loss = ((endpoint.detach() ** 2).flatten(1).sum(1) * weights).sum() / 8
    assert credit.loss == pytest.approx(float(loss), rel=1e-14)


def test_losses_without_history_are_refused(flow, rollout) -> None:
    surrogate = Surrogate((), rollout.latents[-1], None, rollout)
    with pytest.raises(ValueError, match="no gradient"):
        endpoint_gradient(torch.ones(3), surrogate, count=3)


def test_the_toys_latent_has_the_size_the_network_takes() -> None:
    assert LATENT[0] * LATENT[1] == D
