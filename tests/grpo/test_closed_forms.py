"""The upstream is a closed form: against autograd in float64, term by term and as a whole."""

import math

import attrs
import pytest
import torch

from headwater.types import Batch, Credit, Group, Prompt, Rollout
from headwater_grpo import ratios, steps
from headwater_grpo.algorithms import FlowGrpo, GrpoGuard
from headwater_grpo.dynamics import Cps, DanceSde, FlowSde

SIGMAS = torch.tensor([1.0, 0.9, 0.72, 0.5, 0.2, 0.0], dtype=torch.float64)
DYNAMICS = [FlowSde(0.7), DanceSde(0.3), Cps(0.8)]
B, SHAPE = 5, (3, 2, 2)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stochastic_rollout(dynamics, drift=0.0, references=False):
    """A rollout of random velocities; the current ones differ from it by `drift`."""
    n = 4  # the last step is an Euler step
    states, velocities, log_probs = [random(B, *SHAPE)], [], []
    for i in range(n):
        v = random(B, *SHAPE, seed=10 + i)
        t = dynamics.transition(states[-1], v, i, SIGMAS)
        states.append(t.mean + t.std * random(B, *SHAPE, seed=20 + i))
        velocities.append(v)
        log_probs.append(dynamics.log_prob(states[-1], t))
    velocities.append(random(B, *SHAPE, seed=30))
    states.append(states[-1] - 0.2 * velocities[-1])
    log_probs.append(torch.zeros(B, dtype=torch.float64))
    batch = Batch(
        tuple(Prompt(str(b)) for b in range(B)),
        None,
        tuple(range(B)),
        (0,) * B,
        32,
        32,
        5,
        stochastic_steps=tuple(range(n)),
        trained_steps=tuple(range(n)),
    )
    rollout = Rollout(
        batch,
        torch.stack(states),
        SIGMAS,
        torch.stack(velocities),
        torch.stack(log_probs),
        dynamics=dynamics,
        references={i: random(B, *SHAPE, seed=40 + i) for i in range(n)} if references else {},
    )
    current = rollout.velocities[:n] + drift * random(n, B, *SHAPE, seed=50)
    return rollout, current


CREDIT = Credit(
    advantages=torch.tensor([1.5, -0.7, 0.3, -2.0, 0.9], dtype=torch.float64),
    kept=torch.tensor([True, True, True, True, False]),
    count=B * 4,
)


def loss_by_autograd(algorithm, rollout, velocities, guard=False):
    """The objective as the papers write it, with autograd through every step of it."""
    low = high = algorithm.clip
    total = torch.zeros((), dtype=torch.float64)
    for i, v in enumerate(velocities):
        sigma, after = float(SIGMAS[i]), float(SIGMAS[i + 1])
        t = rollout.dynamics.transition(rollout.state(i), v, i, SIGMAS)
        y, std = rollout.state(i + 1), t.std
        log_prob = rollout.dynamics.log_prob(y, t)
        log_ratio = log_prob - rollout.log_probs[i]
        if guard:
            old = rollout.dynamics.transition(rollout.state(i), rollout.velocity(i), i, SIGMAS).mean
            bias = ((t.mean - old) ** 2).flatten(1).mean(1) / (2 * std * std)
            plain = [-((y - m) ** 2).flatten(1).mean(1) / (2 * std * std) for m in (t.mean, old)]
            log_ratio = std * (plain[0] - plain[1] + bias)
        ratio = log_ratio.exp()
        a = CREDIT.advantages
        term = torch.maximum(-a * ratio, -a * ratio.clamp(1 - low, 1 + high))
        if guard:
            term = term / (sigma - after)
        if algorithm.beta:
            v_ref = rollout.references[i]
            mean_ref = rollout.dynamics.transition(rollout.state(i), v_ref, i, SIGMAS).mean
            kl = ((t.mean - mean_ref) ** 2).flatten(1).mean(1) / (2 * std * std)
            if algorithm.kl == "x-flow-grpo":
                kl = kl * (sigma - after)
            if algorithm.kl == "v":
                kl = ((v - v_ref) ** 2).flatten(1).mean(1)
            term = term + algorithm.beta * kl
        total = total + (term * CREDIT.kept).sum() / CREDIT.count
    return total


def compared(algorithm, rollout, current, guard=False):
    v = current.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss_by_autograd(algorithm, rollout, v, guard), v)
    steps_ = tuple(range(len(current)))
    group = Group(steps_, steps_, torch.eye(len(steps_)))
    got = algorithm.compute_upstream(group, rollout, CREDIT, current)
    return float((got - expected).norm() / expected.norm()), got


@pytest.mark.parametrize("dynamics", DYNAMICS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("drift", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("kl", ["", "x", "x-flow-grpo", "v"])
@pytest.mark.parametrize("guard", [False, True])
def test_the_upstream_equals_autograd_through_the_objective(dynamics, drift, kl, guard):
    rollout, current = stochastic_rollout(dynamics, drift, references=True)
    rollout = attrs.evolve(rollout, batch=attrs.evolve(rollout.batch, policy_version=1))
    settings = {"clip": 0.01, **({"beta": 0.3, "kl": kl} if kl else {})}
    algorithm = (GrpoGuard if guard else FlowGrpo)(**settings)
    error, got = compared(algorithm, rollout, current, guard)
    assert error < 1e-10
    assert not got[:, 4].any(), "a sample that is not kept has no upstream"
    clipped = algorithm.measured()["clipped"]
    assert drift or clipped == 0
    assert clipped > 0 or drift != 0.5, "the case with a wide drift must clip"


@pytest.mark.parametrize("dynamics", DYNAMICS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("i", range(4))
def test_the_gradient_of_the_log_probability_and_the_sensitivity(dynamics, i):
    x, y = random(B, *SHAPE), random(B, *SHAPE, seed=1)
    v = random(B, *SHAPE, seed=2).requires_grad_()
    t = dynamics.transition(x, v, i, SIGMAS)
    (expected,) = torch.autograd.grad(dynamics.log_prob(y, t).sum(), v, retain_graph=True)
    got = dynamics.log_prob_grad(y, t, x, v.detach(), i, SIGMAS)
    assert torch.allclose(got, expected.detach(), rtol=1e-12, atol=1e-14)
    (slope,) = torch.autograd.grad(t.mean.sum(), v)
    assert torch.allclose(
        slope, torch.full_like(slope, dynamics.sensitivity(i, SIGMAS)), rtol=1e-12
    )


def test_the_first_step_of_flow_sde_has_the_noise_level_as_its_std():
    for first in (0.99, 0.9, 0.6):
        sigmas = torch.tensor([1.0, first, 0.0], dtype=torch.float64)
        t = FlowSde(0.7).transition(random(1, 2), random(1, 2), 0, sigmas)
        assert t.std == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("level", [0.2, 0.7, 1.0])
def test_cps_keeps_the_total_noise_coefficient(level):
    """y of x = (1-s) data + s eps is (1-s') data + noise of total deviation exactly s'."""
    data, eps = random(1, 4), random(1, 4, seed=1)
    sigma, after = 0.8, 0.6
    x, v = (1 - sigma) * data + sigma * eps, eps - data
    std = steps.cps_std(after, level)
    mean = steps.cps_mean(x, v, sigma, after, std)
    kept = (mean - (1 - after) * data) / eps
    assert torch.allclose(kept**2 + std**2, torch.full_like(kept, after**2), rtol=1e-12)


def test_no_noise_is_the_euler_step():
    x, v = random(2, 3), random(2, 3, seed=1)
    assert torch.allclose(steps.sde_mean(x, v, 0.8, 0.6, 0.0), x - 0.2 * v, rtol=1e-12)
    assert torch.allclose(steps.cps_mean(x, v, 0.8, 0.6, 0.0), x - 0.2 * v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dynamics", DYNAMICS, ids=lambda d: type(d).__name__)
def test_half_types_are_computed_in_float32(dynamics):
    x, v = random(2, 3), random(2, 3, seed=1)
    half = dynamics.transition(x.bfloat16(), v.bfloat16(), 1, SIGMAS).mean
    same = dynamics.transition(x.bfloat16().float(), v.bfloat16().float(), 1, SIGMAS).mean
    assert half.dtype == torch.float32
    assert torch.equal(half, same)


def test_the_clip_has_a_gradient_on_its_border():
    ratio = torch.tensor([1.0, 1.01, 0.99, 1.02, 0.98, 1.02, 0.98], dtype=torch.float64)
    a = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    fine = ratios.unclipped(ratio, a, 0.01, 0.01)
    assert fine.tolist() == [True, True, True, False, False, True, True]


def test_the_kl_of_two_gaussians_is_the_true_one_over_the_dimensions():
    new, old, std = random(1, 6), random(1, 6, seed=1), 0.3
    p = torch.distributions.Normal(new, std)
    q = torch.distributions.Normal(old, std)
    true = torch.distributions.kl_divergence(p, q).mean()
    assert math.isclose(float(ratios.kl("x", new, old, std, -0.1)[0]), float(true), rel_tol=1e-12)
