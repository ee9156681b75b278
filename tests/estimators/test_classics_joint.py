"""The classical estimators through the engine against their papers' graphs.

Tolerance 1e-10 relative in float64, far above rounding (1e-14 seen) and far below any wrong term.
"""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import torch
from estimator_runs import MARGINS, build, joint_backward, scores_of, update
from joint_graphs import Cache, bptt, draft_k, draft_lv, drtune, refl
from torch import Tensor

from headwater.testing.toy_flow import (
    ToyFlow,
    gradient_vector,
    make_batch,
    relative,
    roll_out,
    zero_gradients,
)
from headwater_classics import Bptt, DraftK, DraftLV, DRTune, ReFL
from headwater_direct import Direct

B, N = 4, 10
EXACT = 1e-10


@pytest.fixture(scope="module")
def rollout(flow):
    return roll_out(flow, make_batch(B, N))


@pytest.fixture(scope="module")
def cache(flow, rollout):
    return Cache(flow, rollout)


def engine_side(estimator, flow, rollout, seed=0, **options):
    zero_gradients(flow)
    found = update(estimator, flow, rollout, seed, **options)
    gradient = gradient_vector(flow)
    zero_gradients(flow)
    return found, gradient


def assert_same(flow, found, gradient, endpoint: Tensor, record) -> None:
    """After `joint_backward`: the gradients agree, and so do the endpoints' values."""
    error = relative(gradient, gradient_vector(flow))
    record("relative_error", error)
    assert error < EXACT
    assert relative(found.surrogate.endpoint.detach(), endpoint.detach()) < 1e-12


@pytest.mark.parametrize("mode", ["stream", "joint", "fused"])
@pytest.mark.parametrize("guidance", [1.0, 1.7])
def test_bptt_gives_the_gradient_of_the_differentiable_rollout(
    guidance, mode, record_property
) -> None:
    flow = ToyFlow(seed=4, guidance=guidance)
    rollout = roll_out(flow, make_batch(B, N))
    found, gradient = engine_side(Bptt(), flow, rollout, mode=mode)
    endpoint, weights = bptt(Cache(flow, rollout))
    joint_backward(flow, rollout.batch, [(endpoint, weights, range(B))])
    assert_same(flow, found, gradient, endpoint, record_property)


@pytest.mark.parametrize("margin", [MARGINS, 0.2, "none"])
def test_direct_gives_the_loss_and_gradient_of_the_hinge_for_each_kind_of_margin(
    flow, rollout, cache, margin, record_property
) -> None:
    algorithm = Direct(margin=margin)
    found, gradient = engine_side(Bptt(), flow, rollout, algorithm=algorithm)
    endpoint, weights = bptt(cache)
    margins = None if margin == "none" else margin
    joint_backward(flow, rollout.batch, [(endpoint, weights, range(B))], margins)
    assert_same(flow, found, gradient, endpoint, record_property)


def test_the_hinge_is_inactive_for_some_samples_and_active_for_others(flow, rollout) -> None:
    scores = scores_of(flow, rollout.latents[-1], rollout.batch, B)
    for key, margin in MARGINS.items():
        above = scores.values[key] > margin
        assert above.any() and not above.all()


def test_bptt_carries_the_gradient_at_the_noise(flow, rollout, cache) -> None:
    """carried of the engine is dL/dx_0 of the plain graph, for the whole trajectory."""
    found, _ = engine_side(Bptt(), flow, rollout)
    start = rollout.latents[0].clone().requires_grad_()
    x = start
    for i in range(N):
        x = x - cache.h(i) * cache.v(i, x)
    joint_backward(flow, rollout.batch, [(x, cache.evenly_weighted(), range(B))])
    assert relative(found.diagnostics.carried, start.grad) < EXACT


def test_bptt_agrees_with_central_finite_differences() -> None:
    """Every parameter, the loss of a fresh guided rollout each time.

    Step 1e-5: truncation (1e-10) and rounding (1e-16 / 1e-5) leave about 1e-9; asserted 1e-7.
    """
    flow = ToyFlow(seed=6)
    batch = make_batch(2, 6)
    algorithm = Direct(margin="none")  # no kink within reach of a difference
    _, gradient = engine_side(Bptt(), flow, roll_out(flow, batch), algorithm=algorithm)

    def loss() -> float:
        x = roll_out(flow, batch).latents[-1]
        with torch.no_grad():
            return float(-scores_of(flow, x, batch, 2).total().mean())

    step, slopes = 1e-5, []
    for parameter in flow.network.parameters():
        flat = parameter.data.view(-1)
        for i in range(len(flat)):
            value = flat[i].item()
            flat[i] = value + step
            up = loss()
            flat[i] = value - step
            slopes.append((up - loss()) / (2 * step))
            flat[i] = value
    assert relative(gradient, torch.tensor(slopes, dtype=torch.float64)) < 1e-7


@pytest.mark.parametrize("k", [1, 2, 5, N])
def test_draft_k_gives_the_gradient_of_a_graph_over_the_last_steps(
    flow, rollout, cache, k, record_property
) -> None:
    found, gradient = engine_side(DraftK(k=k), flow, rollout)
    endpoint, weights = draft_k(cache, k)
    joint_backward(flow, rollout.batch, [(endpoint, weights, range(B))])
    assert_same(flow, found, gradient, endpoint, record_property)
    assert found.diagnostics.backwards == 2 * k


def test_draft_k_refuses_more_steps_than_there_are(flow, rollout) -> None:
    with pytest.raises(ValueError, match="11"):
        build(DraftK(k=N + 1), flow, rollout, 0)


@pytest.mark.parametrize("endpoint_name", ["sample-and-renoised", "sample"])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_draft_lv_gives_the_gradient_of_the_mean_over_all_its_last_steps(
    flow, rollout, cache, n, endpoint_name, record_property
) -> None:
    estimator = DraftLV(n=n, endpoint=endpoint_name)
    found, gradient = engine_side(estimator, flow, rollout)
    copies = n if endpoint_name == "sample-and-renoised" else 0
    states = list(found.surrogate.rollout.latents[0].split(B))
    whose = owners_of(found.surrogate.rollout.batch)
    assert len(states) == 1 + copies
    assert torch.equal(states[0], rollout.latents[N - 1]) and whose[0] == list(range(B))
    endpoints, rows = draft_lv(cache, states[1:], whose[1:])
    triples = [
        (endpoint, torch.ones(B, dtype=torch.float64), samples)
        for endpoint, samples in zip(endpoints, rows, strict=True)
    ]
    joint_backward(flow, rollout.batch, triples)
    assert_same(flow, found, gradient, torch.cat(endpoints), record_property)


def owners_of(batch) -> list[list[int]]:
    indices = [prompt.metadata["index"] for prompt in batch.prompts]
    return [indices[i : i + B] for i in range(0, len(indices), B)]


def test_draft_lv_renoises_each_sample_with_standard_noise_of_its_own(flow) -> None:
    """eps = (x' - (1 - s) x_N) / s. 64 samples of 6: 768 draws, mean within 4 errors of 0.036,
    variance within 4 errors of 0.051; no draw of one sample or copy is another's.
    """
    rollout = roll_out(flow, make_batch(64, N))
    states = build(DraftLV(n=2), flow, rollout, 0).rollout.latents[0][64:]
    sigma = float(rollout.sigmas[N - 1])
    image = rollout.latents[N].repeat(2, 1, 1)
    noise = (states - (1 - sigma) * image) / sigma
    assert abs(float(noise.mean())) < 4 * 0.036
    assert abs(float(noise.var()) - 1) < 4 * 0.051
    rounded = {round(value, 6) for value in noise.flatten().tolist()}
    assert len(rounded) > 760
    again = build(DraftLV(n=2), flow, rollout, 99).rollout.latents[0][64:]
    assert torch.equal(states, again), "seeded by sample, not by the generator"
    other = attrs.evolve(rollout.batch, seeds=tuple(range(64)))
    fresh = build(DraftLV(n=2), flow, attrs.evolve(rollout, batch=other), 0)
    assert not torch.equal(states, fresh.rollout.latents[0][64:])


@pytest.mark.parametrize("endpoint_name", ["posterior-mean", "sample"])
@pytest.mark.parametrize("seed", range(4))
def test_refl_gives_the_gradient_of_one_step_with_its_posterior_mean(
    flow, rollout, cache, endpoint_name, seed, record_property
) -> None:
    found, gradient = engine_side(ReFL(endpoint=endpoint_name), flow, rollout, seed)
    (group,) = found.surrogate.groups
    (tau,) = group.active
    endpoint, weights = refl(cache, tau, endpoint_name)
    joint_backward(flow, rollout.batch, [(endpoint, weights, range(B))])
    assert_same(flow, found, gradient, endpoint, record_property)


def test_refl_draws_its_step_evenly_from_the_last_eleven_of_twenty_five(flow) -> None:
    """1,100 draws, 11 steps: chi-square of 10 degrees stays under 36 (1 in 10,000)."""
    rollout = roll_out(flow, make_batch(1, 25))
    seen = Counter(build(ReFL(), flow, rollout, s).groups[0].active[0] for s in range(1100))
    assert set(seen) == set(range(14, 25))
    assert sum((count - 100) ** 2 / 100 for count in seen.values()) < 36


@pytest.mark.parametrize("endpoint_name", ["posterior-mean", "sample"])
@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_drtune_gives_the_gradient_of_the_loop_with_stopped_inputs(
    flow, rollout, cache, endpoint_name, k, seed, record_property
) -> None:
    found, gradient = engine_side(DRTune(endpoint=endpoint_name, k=k), flow, rollout, seed)
    (group,) = found.surrogate.groups
    stop = N if endpoint_name == "sample" else early_stop(cache, found.surrogate.endpoint)
    endpoint, weights = drtune(cache, group.active, stop, endpoint_name)
    joint_backward(flow, rollout.batch, [(endpoint, weights, range(B))])
    assert_same(flow, found, gradient, endpoint, record_property)


def early_stop(cache: Cache, endpoint: Tensor) -> int:
    """The step whose posterior mean the endpoint is."""
    means = [cache.x(i) - cache.sigma(i) * cache.old_v(i) for i in range(N)]
    (stop,) = [i for i, mean in enumerate(means) if relative(endpoint.detach(), mean) < 1e-12]
    return stop


def test_drtune_trains_equally_spaced_steps_up_to_a_late_stop(flow) -> None:
    """25 steps: the stop in the last 10, three steps with stride (e + 1) // 3, the first free.

    Over 400 draws the stop itself is trained at times and at times not, and each case gives the
    joint gradient above.
    """
    rollout = roll_out(flow, make_batch(1, 25))
    stops, trained_stop = Counter(), Counter()
    for seed in range(400):
        surrogate = build(DRTune(), flow, rollout, seed)
        stop = int(surrogate.diagnostics["step"])
        active = surrogate.groups[0].active
        stride = (stop + 1) // 3
        assert [b - a for a, b in zip(active, active[1:], strict=False)] == [stride, stride]
        assert active[0] >= 0 and active[-1] <= stop
        stops[stop] += 1
        trained_stop[active[-1] == stop] += 1
    assert set(stops) == set(range(15, 25))
    assert min(trained_stop[True], trained_stop[False]) > 20
