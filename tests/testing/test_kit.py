"""Importing the kit costs nothing, and its toys are what they say."""

import subprocess
import sys
import textwrap

import attrs
import pytest
import torch

import headwater
from headwater.rollout import RolloutLoop
from headwater.testing import gradients, toys
from headwater.testing.fresh import Fresh


def test_importing_the_kit_imports_neither_torch_nor_pytest() -> None:
    code = "import headwater.testing, sys; print({'torch', 'pytest'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_naming_a_contract_imports_no_torch() -> None:
    code = "from headwater.testing import *; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_linear_flows_closed_forms_are_those_of_autograd() -> None:
    """1e-12 in float64: the same products in another order."""
    flow = toys.LinearFlow()
    for plugin in (headwater.load("estimator", "bptt"), headwater.load("estimator", "exact")):
        rollout = gradients.rollout_of(flow, 3, 7, plugin.upstream)
        closed = gradients.closed_form(flow, rollout, plugin, 4)
        expected = gradients.by_autograd(flow, rollout, plugin, 4)
        found = torch.cat([closed[name].flatten() for name in flow.trainable()])
        assert gradients.distance(found, expected) < 1e-12


def test_the_linear_flows_jacobian_is_that_of_its_rollout() -> None:
    flow = toys.LinearFlow()
    rollout = gradients.rollout_of(flow, 2, 6, "endpoint")
    moved = rollout.state(2).clone()
    moved[0] += 0.5
    x = moved
    for i in range(2, 6):
        sigma = rollout.sigmas[i].expand(2)
        x = x - rollout.step_size(i) * flow.velocity(x, sigma, rollout.batch.conditioning)
    change = (x - rollout.state(6)).detach()[0].flatten()
    expected = flow.jacobian(2, 6, rollout.sigmas) @ torch.full((6,), 0.5).double()
    torch.testing.assert_close(change, expected, rtol=1e-10, atol=1e-12)


def test_a_gaussian_rollout_has_the_moments_that_are_told_without_drawing() -> None:
    """20,000 samples: a deviation of 1 is known to 0.005, and 5 standard errors are allowed."""
    flow = toys.GaussianFlow()
    dynamics = headwater.load("dynamics", "flow-sde")
    sigmas = toys.shifted(6)
    mean, covariance = flow.sampled(sigmas, dynamics, range(5))
    x = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0)).double()
    for i in range(6):
        m, c = flow.marginal(float(sigmas[i]))
        unit = torch.eye(3).double()
        gain = (float(sigmas[i]) * unit - (1 - float(sigmas[i])) * flow.covariance) @ c.inverse()
        v = (x - m) @ gain.T - flow.mean
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(i + 1)).double()
        step = dynamics.transition(x, v, i, sigmas)
        x = step.mean + step.std * noise if i < 5 else x - float(sigmas[i]) * v
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.03)
    torch.testing.assert_close(x.T.cov(), covariance, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", ["ode", "flow-sde", "dance-sde"])
def test_more_steps_bring_a_rollouts_covariance_to_the_datas(name) -> None:
    """The error falls like 1 / N, and the mean is right at any number of steps."""
    flow, dynamics = toys.GaussianFlow(), headwater.load("dynamics", name)
    errors = []
    for steps in (50, 200):
        noisy = range(steps - 1) if dynamics.stochastic else ()
        mean, covariance = flow.sampled(toys.shifted(steps), dynamics, noisy)
        torch.testing.assert_close(mean, flow.mean, rtol=1e-10, atol=1e-12)
        errors.append(float((covariance - flow.covariance).norm() / flow.covariance.norm()))
    assert errors[1] < 0.35 * errors[0]
    assert errors[1] < 0.02


def test_the_gaussian_flows_rollout_runs_in_cores_loop() -> None:
    batch = attrs.evolve(toys.batch_of(2, 4), conditioning=None)
    made = RolloutLoop().sample_rollout(
        toys.GaussianFlow(), headwater.load("dynamics", "ode"), batch
    )
    assert made.latents.shape == (5, 2, 3)


def test_a_module_that_works_at_import_is_told_with_file_and_line(tmp_path, monkeypatch) -> None:
    source = """
        import os, socket, threading
        import attrs, torch
        open(__file__).close()
        socket.socket().close()
        LARGE = torch.zeros(2**20)
        os.environ["SOMETHING"] = "1"
        @attrs.frozen(eq=False)
        class Plugin:
            pass
    """
    (tmp_path / "busy_plugin.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh = Fresh()
    said = "; ".join(fresh.ask("busy_plugin:Plugin", {}))
    fresh.close()
    assert "importing it opens" in said and "busy_plugin.py:4" in said
    assert "uses the network" in said and "sets the environment variable" in said
    assert "it makes 4.0 MiB of tensors" in said


def test_a_module_that_is_not_there_is_told() -> None:
    fresh = Fresh()
    said = fresh.ask("absent_plugin:Plugin", {})
    fresh.close()
    assert said == [
        "importing or constructing it failed: ModuleNotFoundError: No module named 'absent_plugin'"
    ]
