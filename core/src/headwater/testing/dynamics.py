"""The contract of dynamics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from headwater.testing.training import TrainingContract

LATENTS = ((2, 3), (7,), (3, 5, 1))
"""Shapes of one latent, packed or not."""


class DynamicsContract(TrainingContract):
    """What dynamics owe: a Gaussian step, its density and its sensitivity."""

    kind: ClassVar[str] = "dynamics"
    steps: ClassVar[int] = 6
    """Steps of the grids it is tried on."""

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """Its run: with a policy gradient where it is stochastic."""
        tables: dict[str, Any] = {"dynamics": own}
        if plugin.stochastic:
            tables |= {"algorithm": {"use": "toy-policy"}, "estimator": {"use": "toy-each"}}
        return tables

    def test_a_standard_deviation_is_a_number_from_0(self, plugin: Any) -> None:
        """std is a finite float, 0 or more, the same for every state; the mean is finite."""
        import math

        for i, sigmas, x, v in _steps(self.steps):
            found, other = (plugin.transition(t, w, i, sigmas) for t, w in ((x, v), (v, x)))
            assert isinstance(found.std, float), (
                f"std of step {i} is {type(found.std).__name__}; give one float for all samples"
            )
            assert math.isfinite(found.std) and found.std >= 0, f"std of step {i} is {found.std}"
            assert found.std == other.std, f"std of step {i} depends on the state; it may not"
            assert found.mean.isfinite().all(), f"the mean of step {i} is not finite"

    def test_stochastic_is_true(self, plugin: Any) -> None:
        """It declares itself stochastic if some step has noise, and only then."""
        found = [plugin.transition(x, v, i, s).std > 0 for i, s, x, v in _steps(self.steps)]
        assert any(found) == plugin.stochastic, (
            f"stochastic is {plugin.stochastic}, yet {sum(found)} of {len(found)} steps have noise"
        )

    def test_the_first_step_starts_at_sigma_1_exactly(self, plugin: Any) -> None:
        """Where sigma is 1 nothing is divided by 1 - sigma, and where it ends at 0, by 0."""
        import torch

        for steps in (1, 2, 50):
            sigmas = torch.linspace(1, 0, steps + 1)
            x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
            for i in (0, steps - 1):
                found = plugin.transition(x, -x, i, sigmas)
                place = f"step {i} from sigma {float(sigmas[i])} to {float(sigmas[i + 1])}"
                fine = found.mean.isfinite().all() and 0 <= found.std < float("inf")
                assert fine, f"{place}: mean or std is not finite"

    def test_types_and_shapes_are_kept(self, plugin: Any) -> None:
        """The mean has the state's shape; half types are cast up, float64 stays float64."""
        import torch

        kinds = {torch.float64: torch.float64, torch.float32: torch.float32}
        kinds |= {torch.bfloat16: torch.float32, torch.float16: torch.float32}
        for dtype, expected in kinds.items():
            for size in (1, 3):
                x = torch.ones(size, 2, 3, dtype=dtype)
                mean = plugin.transition(x, x, 1, torch.linspace(1, 0, 5)).mean
                assert mean.shape == x.shape, f"mean {tuple(mean.shape)} of {tuple(x.shape)}"
                assert mean.dtype == expected, (
                    f"the mean of {dtype} states is {mean.dtype}, expected {expected}; start with "
                    f"headwater.types.at_least_float32"
                )

    def test_a_step_changes_no_tensor_and_is_the_same_twice(self, plugin: Any) -> None:
        """States and velocities stay as they were; nothing is drawn in `transition`."""
        for i, sigmas, x, v in _steps(self.steps):
            before = (x.clone(), v.clone(), sigmas.clone())
            first, second = (plugin.transition(x, v, i, sigmas) for _ in range(2))
            unchanged = all(map(_equal, before, (x, v, sigmas)))
            assert unchanged, f"step {i} changes its arguments; it may not work in place"
            assert _equal(first.mean, second.mean) and first.std == second.std, (
                f"two transitions of step {i} differ; core draws the noise, not `transition`"
            )

    def test_samples_do_not_mix(self, plugin: Any) -> None:
        """Row b of the mean depends on sample b alone."""
        for i, sigmas, x, v in _steps(self.steps):
            mean = plugin.transition(x, v, i, sigmas).mean
            alone = plugin.transition(x[1:2], v[1:2], i, sigmas).mean
            assert _near(alone, mean[1:2]), f"step {i}: sample 1 alone has another mean"

    def test_sensitivity_is_the_derivative_of_the_mean(self, plugin: Any) -> None:
        """mean(v + d) - mean(v) = sensitivity d, whatever v and d: the mean is affine in v."""
        for i, sigmas, x, v in _steps(self.steps):
            moved = plugin.transition(x, v + 3 * x, i, sigmas).mean
            change = moved - plugin.transition(x, v, i, sigmas).mean
            c = plugin.sensitivity(i, sigmas)
            assert isinstance(c, float), f"sensitivity is {type(c).__name__}, expected a float"
            assert _near(change, 3 * c * x), (
                f"step {i}: sensitivity is {c:.6g}, the mean moves by "
                f"{float((change / (3 * x)).mean()):.6g} times the velocity"
            )

    def test_log_prob_is_one_finite_number_a_sample(self, plugin: Any) -> None:
        """(B,), larger nearer the mean, each sample by itself."""
        for i, sigmas, x, v in _noisy(plugin, self.steps):
            step = plugin.transition(x, v, i, sigmas)
            near, far = (plugin.log_prob(step.mean + k * step.std, step) for k in (0.5, 3.0))
            assert near.shape == (len(x),), f"log_prob has shape {tuple(near.shape)}, expected (B,)"
            assert near.isfinite().all() and far.isfinite().all(), f"step {i}: not finite"
            assert (near > far).all(), f"step {i}: a state further from the mean is likelier"

    def test_log_prob_grad_is_the_gradient_of_log_prob(self, plugin: Any) -> None:
        """The closed form against autograd through transition and log_prob, 1e-8 in float64."""
        import torch

        for i, sigmas, x, v in _noisy(plugin, self.steps):
            leaf = v.clone().requires_grad_()
            step = plugin.transition(x, leaf, i, sigmas)
            after = step.mean.detach() + step.std * x.flip(0)
            (expected,) = torch.autograd.grad(plugin.log_prob(after, step).sum(), leaf)
            plain = plugin.transition(x, v, i, sigmas)
            found = plugin.log_prob_grad(after, plain, x, v, i, sigmas)
            assert found.shape == x.shape, f"log_prob_grad has shape {tuple(found.shape)}"
            error = float((found - expected).norm() / expected.norm())
            assert error < 1e-8, (
                f"step {i}: log_prob_grad differs from autograd by {error:.2g} of it, latent "
                f"{tuple(x.shape[1:])}"
            )

    def test_a_deterministic_step_is_never_scored(self, plugin: Any) -> None:
        """Where std is 0 there is no density: log_prob and log_prob_grad raise ValueError."""
        import pytest

        for i, sigmas, x, v in _steps(self.steps):
            step = plugin.transition(x, v, i, sigmas)
            if step.std > 0:
                continue
            with pytest.raises(ValueError):
                plugin.log_prob(step.mean, step)
                pytest.fail(f"step {i} has std 0 and log_prob gives a number; raise ValueError")
            with pytest.raises(ValueError):
                plugin.log_prob_grad(step.mean, step, x, v, i, sigmas)
                pytest.fail(f"step {i} has std 0 and a log_prob_grad; raise ValueError")

    def test_it_follows_the_mean_of_a_gaussian(self, plugin: Any) -> None:
        """On a flow with known marginals a step leads from mean to mean, exactly."""
        from headwater.testing.toys import GaussianFlow

        flow = GaussianFlow()
        sigmas = flow.sigmas(self.steps, (3,))
        for i in range(self.steps):
            x = flow.marginal(float(sigmas[i]))[0][None]
            found = plugin.transition(x, flow.velocity(x, sigmas[i : i + 1]), i, sigmas).mean[0]
            expected = flow.marginal(float(sigmas[i + 1]))[0]
            assert _near(found, expected), (
                f"step {i} leads from the mean of the flow at sigma {float(sigmas[i]):.3g} to "
                f"{found.tolist()} and not to its mean {expected.tolist()}: the drift is wrong"
            )

    def test_a_rollout_scores_what_it_stores(self, plugin: Any, tmp_path: Path) -> None:
        """Log-probabilities of a cached rollout come back from its states, also in bfloat16."""
        import attrs
        import torch

        from headwater.rollout import RolloutLoop
        from headwater.testing.toys import LinearFlow, batch_of

        flow, steps = LinearFlow(dtype=torch.float32), self.steps
        for store in ("float32", "bfloat16"):
            batch = attrs.evolve(
                batch_of(3, steps), stochastic_steps=tuple(range(steps)), store=store
            )
            rollout = RolloutLoop().sample_rollout(flow, plugin, batch)  # type: ignore[arg-type]
            for i in range(steps):
                x, v = rollout.state(i), rollout.velocity(i)
                step = plugin.transition(x, v, i, rollout.sigmas)
                expected = rollout.log_probs[i]  # type: ignore[index]
                if step.std == 0:
                    assert not expected.any(), f"step {i} is deterministic and was scored"
                    continue
                found = plugin.log_prob(rollout.state(i + 1), step)
                assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5), (
                    f"step {i}, stored as {store}: log_prob of the stored state is {found.tolist()}"
                    f", it was {expected.tolist()}"
                )


def _steps(count: int) -> Iterator[tuple[int, Any, Any, Any]]:
    """(i, sigmas, x, v) for every step of an uneven grid and every latent shape, in float64."""
    import torch

    from headwater.testing.toys import shifted

    sigmas = shifted(count)
    for latent in LATENTS:
        generator = torch.Generator().manual_seed(len(latent))
        x, v = torch.randn(2, 4, *latent, generator=generator, dtype=torch.float64)
        for i in range(count):
            yield i, sigmas, x, v


def _noisy(plugin: Any, count: int) -> Iterator[tuple[int, Any, Any, Any]]:
    for i, sigmas, x, v in _steps(count):
        if plugin.transition(x, v, i, sigmas).std > 0:
            yield i, sigmas, x, v


def _equal(one: Any, other: Any) -> bool:
    import torch

    return torch.equal(one, other)


def _near(one: Any, other: Any) -> bool:
    import torch

    return torch.allclose(one, other, rtol=1e-10, atol=1e-12)
