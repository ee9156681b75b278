"""`jagg-kriging`: its rows against an embedding, its gradient against sums of steps' own."""

from itertools import combinations
from pathlib import Path

import attrs
import numpy as np
import pluggy
import pytest
import torch

from headwater import hookimpl, hookspecs
from headwater.composition import compose
from headwater.dynamics import Ode
from headwater.engine import MODES, Engine, run_groups
from headwater.errors import InputError
from headwater.markers import PROJECT
from headwater.testing import EstimatorContract
from headwater.testing.cached import shifted
from headwater.testing.toy_flow import ToyFlow, make_batch, relative, roll_out
from headwater.types import Credit
from headwater_grpo.dynamics import Cps, DanceSde, FlowSde
from headwater_jagg_kriging.estimator import JaggKriging, schedule_of
from headwater_jagg_kriging.placement import (
    clamped_basis,
    distances,
    expected_errors,
    kriging_basis,
    placed,
)

EXAMPLE = Path(__file__).parents[2] / "contrib" / "jagg-kriging" / "examples" / "jagg-kriging.toml"
SIGMAS = tuple(float(s) for s in shifted(12))
QUIET = (0.0,) * 12
NOISY = tuple(0.4 - 0.03 * i for i in range(12))
STEPS = (1, 2, 3, 5, 6, 8, 9, 10)


def noisy_rollout(steps=12, trained=None, dynamics=None, size=3):
    """The nonlinear toy's rollout with every step but the last stochastic."""
    flow = ToyFlow(guidance=1)
    trained = tuple(range(steps - 1)) if trained is None else trained
    batch = attrs.evolve(
        make_batch(size, steps), stochastic_steps=tuple(range(steps - 1)), trained_steps=trained
    )
    rollout = roll_out(flow, attrs.evolve(batch, stochastic_steps=()))
    dynamics = FlowSde() if dynamics is None else dynamics
    return flow, attrs.evolve(rollout, batch=batch, dynamics=dynamics)


class Energy:
    """Per-step upstream s_i = (1 + i) (v - sin v): curved, different at each step."""

    upstream = "per-step"

    @hookimpl
    def compute_upstream(self, group, velocities):
        pairs = zip(group.steps, velocities, strict=True)
        return torch.stack([(1 + i) * (v - v.sin()) for i, v in pairs])


def through_engine(flow, rollout, estimator, mode="stream"):
    """The gradient of one update, in one vector, and the surrogate."""
    for parameter in flow.network.parameters():
        parameter.grad = None
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in (Engine(flow, mode), Energy(), estimator):
        manager.register(plugin)
    manager.check_pending()
    with torch.no_grad():
        surrogate = estimator.build_surrogate(rollout)
    run_groups(manager.hook, flow, surrogate, "per-step", Credit(), None, mode)
    return torch.cat([p.grad.flatten() for p in flow.network.parameters()]), surrogate


def pulled_back(flow, rollout, at, s):
    """J_at^T s in one vector."""
    sigma = rollout.sigmas[at].expand(len(rollout.batch))
    v = flow.velocity(rollout.latents[at], sigma, rollout.batch.conditioning)
    return torch.cat([g.flatten() for g in torch.autograd.grad(v, flow.network.parameters(), s)])


def upstreams(flow, rollout):
    out = []
    for i in range(rollout.steps):
        sigma = rollout.sigmas[i].expand(len(rollout.batch))
        with torch.no_grad():
            v = flow.velocity(rollout.latents[i], sigma, rollout.batch.conditioning)
        out.append((1 + i) * (v - v.sin()))
    return out


def embedded(gamma):
    """Points whose squared distances are 2 gamma (classical scaling), (S, S)."""
    size = len(gamma)
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-centre @ gamma.numpy() @ centre)
    assert values.min() > -1e-12, "a semivariogram is conditionally negative definite"
    return vectors * np.sqrt(values.clip(0))


def test_the_distance_is_that_of_simulated_paths():
    """20,000 paths of unit velocity variance 2 and independent noise; 4 standard errors."""
    generator = np.random.default_rng(0)
    v = np.sqrt(2) * generator.standard_normal(20000)
    x, states = np.zeros(20000), []
    for i in range(12):
        states.append(x)
        h = SIGMAS[i] - SIGMAS[i + 1]
        x = x - h * v + NOISY[i] * generator.standard_normal(20000)
    found = distances(SIGMAS, NOISY, STEPS)
    for j, one in enumerate(STEPS):
        for k, other in enumerate(STEPS):
            squares = (states[one] - states[other]) ** 2
            error = squares.std() / 20000**0.5
            assert float(found[j, k]) == pytest.approx(squares.mean(), abs=4 * error + 1e-15)


@pytest.mark.parametrize("power", [0.3, 0.75, 0.95])
@pytest.mark.parametrize("nodes", [(0, 7), (2, 5), (3,), (0, 3, 6)])
def test_a_kriging_column_is_the_nearest_point_of_the_nodes_span(nodes, power):
    """Embed the process as points; then the best prediction is a projection, by least squares."""
    gamma = distances(SIGMAS, NOISY, STEPS) ** power
    points = embedded(gamma)
    found = kriging_basis(gamma, nodes)
    errors = expected_errors(gamma, nodes, found)
    for j in range(len(STEPS)):
        first, rest = points[nodes[0]], points[list(nodes[1:])]
        span = (rest - first).T
        tail = np.linalg.lstsq(span, points[j] - first, rcond=None)[0]
        wanted = np.array([1 - tail.sum(), *tail])
        assert found[:, j].numpy() == pytest.approx(wanted, abs=1e-8)
        missed = points[j] - wanted @ points[list(nodes)]
        assert float(errors[j]) == pytest.approx(missed @ missed, abs=1e-10)


def test_the_error_of_any_column_is_the_distance_of_the_points():
    gamma = distances(SIGMAS, NOISY, STEPS) ** 0.6
    points, nodes = embedded(gamma), (1, 4)
    basis = clamped_basis([SIGMAS[i] for i in STEPS], nodes)
    found = expected_errors(gamma, nodes, basis)
    for j in range(len(STEPS)):
        missed = points[j] - basis[:, j].numpy() @ points[list(nodes)]
        assert float(found[j]) == pytest.approx(missed @ missed, abs=1e-12)


@pytest.mark.parametrize("nodes", [(0, 7), (2, 5), (4,), (0, 3, 6)])
def test_without_noise_and_with_half_the_power_kriging_is_linear_and_clamped(nodes):
    """A random walk in sigma: linear between nodes, and the last one known beyond them."""
    gamma = distances(SIGMAS, QUIET, STEPS) ** 0.5
    wanted = clamped_basis([SIGMAS[i] for i in STEPS], nodes)
    torch.testing.assert_close(kriging_basis(gamma, nodes), wanted, rtol=0, atol=1e-12)


def test_without_noise_and_with_full_power_kriging_goes_on_in_a_line():
    gamma = distances(SIGMAS, QUIET, STEPS) ** (1 - 1e-9)
    s = np.array([SIGMAS[i] for i in STEPS])
    share = (s[2] - s) / (s[2] - s[5])
    found = kriging_basis(gamma, (2, 5)).numpy()
    assert found[1] == pytest.approx(share, abs=1e-6)
    assert share.max() > 1.2 and share.min() < -0.2, "and it does extrapolate"


@pytest.mark.parametrize("nodes", [(0, 7), (2, 5), (4,), (0, 3, 6), tuple(range(8))])
def test_clamped_rows_are_numpys_interpolation(nodes):
    s = [SIGMAS[i] for i in STEPS]
    found = clamped_basis(s, nodes).numpy()
    for row in range(len(nodes)):
        values = np.eye(len(nodes))[row][::-1]
        wanted = np.interp(s, [s[k] for k in nodes][::-1], values)
        assert found[row] == pytest.approx(wanted, abs=1e-14)


@pytest.mark.parametrize("kind", ["linear", "kriging"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_nodes_are_those_of_least_weighted_error(kind, count):
    """Every choice, its error summed over the embedded points."""
    weights = tuple(0.2 + 0.1 * i * i for i in range(12))
    nodes, basis = placed(SIGMAS, NOISY, weights, STEPS, count, 0.75, kind)
    gamma = distances(SIGMAS, NOISY, STEPS) ** 0.75
    points = embedded(gamma)

    def error(chosen):
        rows = clamped_basis([SIGMAS[i] for i in STEPS], chosen)
        rows = kriging_basis(gamma, chosen) if kind == "kriging" else rows
        missed = points - rows.numpy().T @ points[list(chosen)]
        return sum(weights[i] * m @ m for i, m in zip(STEPS, missed, strict=True))

    every = {chosen: error(chosen) for chosen in combinations(range(len(STEPS)), count)}
    assert every[nodes] == pytest.approx(min(every.values()), rel=1e-9)
    assert basis.shape == (count, len(STEPS))
    torch.testing.assert_close(basis.sum(0), torch.ones(len(STEPS), dtype=torch.float64))
    torch.testing.assert_close(basis[:, list(nodes)], torch.eye(count, dtype=torch.float64))


def test_a_step_with_all_the_weight_is_a_node():
    for heavy in range(len(STEPS)):
        weights = [1e-9] * 12
        weights[STEPS[heavy]] = 1.0
        nodes, _ = placed(SIGMAS, NOISY, tuple(weights), STEPS, 2, 0.75, "linear")
        assert heavy in nodes


def test_noise_alone_moves_a_node():
    """Steps 0 to 3 of an even grid, all of one weight: one step's noise sets the first apart."""
    even, ones = tuple(1 - i / 4 for i in range(5)), (1.0,) * 4
    calm = placed(even, (0.0,) * 4, ones, (0, 1, 2, 3), 1, 0.75, "linear")[0]
    shaken = placed(
        even, (0.0, 0.0, 3.0, 0.0), (1.0, 1.0, 1.0, 9.0), (0, 1, 2, 3), 1, 0.75, "linear"
    )[0]
    assert calm == (1,)
    assert shaken == (3,)


@pytest.mark.parametrize("dynamics", [FlowSde(noise_level=0.6), DanceSde(eta=0.4)])
def test_the_weight_is_the_expected_square_of_the_upstream(dynamics):
    """c = dm/dv by autograd; a Gaussian's score at one std is 1 / std."""
    _, rollout = noisy_rollout(dynamics=dynamics)
    stds, weights = schedule_of(rollout)
    for i in range(11):
        v = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        made = dynamics.transition(torch.ones(1, dtype=torch.float64), v, i, rollout.sigmas)
        made.mean.sum().backward()
        assert stds[i] == pytest.approx(made.std)
        assert weights[i] == pytest.approx(float(v.grad) ** 2 / made.std**2)
    assert stds[11] == weights[11] == 0


def test_coefficients_preserving_sampling_weighs_without_a_variance():
    """d(-(y - m)^2)/dv at y = m + std is 2 c std."""
    dynamics = Cps(noise_level=0.5)
    _, rollout = noisy_rollout(dynamics=dynamics)
    stds, weights = schedule_of(rollout)
    for i in range(11):
        assert weights[i] == pytest.approx(
            (2 * dynamics.sensitivity(i, rollout.sigmas) * stds[i]) ** 2
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("basis", ["linear", "kriging"])
def test_the_gradient_is_the_sum_of_spread_upstreams(mode, basis):
    """sum_j sum_k Phi[k, j] J_k^T s_j, one pull-back at a time."""
    flow, rollout = noisy_rollout()
    estimator = JaggKriging(window=5, basis=basis, routed=0.7)
    found, surrogate = through_engine(flow, rollout, estimator, mode)
    s = upstreams(flow, rollout)
    wanted = torch.zeros_like(found)
    for group in surrogate.groups:
        for k, node in enumerate(group.active):
            for j, step in enumerate(group.steps):
                wanted += float(group.basis[k, j]) * pulled_back(flow, rollout, node, s[step])
    assert relative(found, wanted) < 1e-12
    # floor(.7 * 3 + 1/2) = 2 groups of five by two nodes each, then the eleventh step alone.
    assert [len(g.active) for g in surrogate.groups] == [2, 2, 1]


@pytest.mark.parametrize(
    "settings", [{"routed": 0.0}, {"window": 2}, {"window": 4, "nodes": 4}, {"window": 1}]
)
def test_with_a_node_at_every_step_the_gradient_is_exact(settings):
    flow, rollout = noisy_rollout(trained=(7, 0, 1, 4, 9))
    found, _ = through_engine(flow, rollout, JaggKriging(**settings))
    s = upstreams(flow, rollout)
    wanted = sum(pulled_back(flow, rollout, i, s[i]) for i in (0, 1, 4, 7, 9))
    assert relative(found, wanted) < 1e-12


def test_cached_velocities_are_taken_while_they_are_current():
    flow, rollout = noisy_rollout()
    fresh, _ = through_engine(flow, rollout, JaggKriging())
    cached, surrogate = through_engine(flow, rollout, JaggKriging(middle="cached"))
    assert surrogate.cached_velocities
    assert relative(cached, fresh) < 1e-10
    stale = attrs.evolve(rollout, batch=attrs.evolve(rollout.batch, policy_version=1))
    surrogate = JaggKriging(middle="cached").build_surrogate(stale)
    assert not surrogate.cached_velocities
    assert surrogate.diagnostics["recomputed"] == 1


def test_groups_do_not_depend_on_the_samples():
    """So micro-batches and processes change nothing."""
    found = []
    for size in (1, 3):
        _, rollout = noisy_rollout(size=size)
        latents = rollout.latents * size
        found.append(JaggKriging(window=6).build_surrogate(attrs.evolve(rollout, latents=latents)))
    for one, other in zip(*(s.groups for s in found), strict=True):
        assert (one.steps, one.active) == (other.steps, other.active)
        torch.testing.assert_close(one.basis, other.basis, rtol=0, atol=0)


def test_a_rollout_that_holds_no_dynamics_counts_as_one_without_noise():
    """A plan's rollout; the counts of steps and nodes are the same."""
    _, rollout = noisy_rollout()
    bare = JaggKriging().build_surrogate(attrs.evolve(rollout, dynamics=None))
    full = JaggKriging().build_surrogate(rollout)
    sigmas = tuple(float(s) for s in rollout.sigmas)
    for group in bare.groups[:2]:
        nodes, basis = placed(sigmas, (0.0,) * 12, (1.0,) * 12, group.steps, 2, 0.75, "linear")
        assert group.active == tuple(group.steps[k] for k in nodes)
        torch.testing.assert_close(group.basis, basis, rtol=0, atol=0)
    assert [len(g.active) for g in bare.groups] == [len(g.active) for g in full.groups]


def test_what_cannot_be_is_refused():
    _, rollout = noisy_rollout()
    # Trained steps are stochastic, so an ODE has nothing to say of them.
    with pytest.raises(ValueError, match="no stochastic step"):
        JaggKriging().build_surrogate(attrs.evolve(rollout, dynamics=Ode()))
    for settings in ({"power": 0.0}, {"power": 1.0}, {"window": 0}, {"nodes": 0}, {"routed": 1.5}):
        with pytest.raises(ValueError, match="expected a number"):
            JaggKriging(**settings)


def test_too_many_choices_of_nodes_are_refused_before_the_run():
    """30 trained steps, 10 of them: 30,045,015 ways would take hours."""
    sets = ["rollout.steps=31", "estimator.window=30", "estimator.nodes=10"]
    with pytest.raises(InputError, match="30,045,015 ways"):
        compose(EXAMPLE, sets)


def test_the_example_composes():
    assert compose(EXAMPLE).estimator.entry.name == "jagg-kriging"


class TestJaggKriging(EstimatorContract):
    """What every estimator owes."""

    name = "jagg-kriging"
