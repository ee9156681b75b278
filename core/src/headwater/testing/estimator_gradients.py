"""The part of an estimator's contract that sends its surrogate backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from headwater.testing.training import TrainingContract

CLOSE = 1e-9
"""Relative, in float64: the same sums in another order."""
Make = Callable[[], Any]


class GradientContract(TrainingContract):
    """Checks of the gradient of an estimator, on flows of the kit in float64."""

    steps: ClassVar[int] = 8
    """Steps of the rollouts it is tried on."""

    @pytest.fixture
    def make(self, cls: Any, headwater_table: dict[str, Any]) -> Make:
        """Makes a plugin that nobody used before."""
        from headwater.settings import structure

        return lambda: structure(cls, headwater_table, "")[0]

    @pytest.fixture
    def flow(self) -> Any:
        """A linear flow in float64."""
        from headwater.testing.toys import LinearFlow

        return LinearFlow()

    @pytest.fixture
    def curved(self) -> Any:
        """A strongly nonlinear flow in float64."""
        from headwater.testing.toys import CurvedFlow

        return CurvedFlow()

    def test_its_gradient_is_finite_and_reaches_the_weights(
        self, make: Make, flow: Any, curved: Any
    ) -> None:
        """Also for one sample; at least one of a few seeds gives a gradient that is not zero."""
        from headwater.testing import gradients

        for network in (flow, curved):
            for size in (1, 3):
                rollout = gradients.rollout_of(network, size, self.steps, make().upstream)
                every = [gradients.gradient(make(), network, rollout, size, s) for s in range(3)]
                fine = all(found.vector.isfinite().all() for found in every)
                assert fine, f"the gradient of {size} samples is not finite"
                assert any(found.vector.any() for found in every), (
                    "the gradient is zero: no active step, or a basis of zeros"
                )

    def test_every_engine_mode_gives_the_same_gradient(self, make: Make, curved: Any) -> None:
        """`stream`, `joint` and `fused` differ in memory alone."""
        from headwater.engine import MODES
        from headwater.testing import gradients

        rollout = gradients.rollout_of(curved, 3, self.steps, make().upstream)
        first, *others = [
            gradients.gradient(make(), curved, rollout, 3, mode=mode).vector for mode in MODES
        ]
        for mode, other in zip(MODES[1:], others, strict=True):
            error = gradients.distance(other, first)
            assert error < CLOSE, f"mode {mode!r} differs from {MODES[0]!r} by {error:.2g} of it"

    def test_micro_batches_do_not_change_the_gradient(self, make: Make, curved: Any) -> None:
        """The gradient of 4 samples is the sum of those of 1 and 3, n being 4 in all."""
        from headwater.testing import gradients

        rollout = gradients.rollout_of(curved, 4, self.steps, make().upstream)
        for seed in range(3):
            whole = gradients.gradient(make(), curved, rollout, 4, seed).vector
            plugin = make()  # one plugin sees all micro-batches of a step
            parts = [gradients.rows(rollout, part) for part in ([0], [1, 2, 3])]
            one, three = (gradients.gradient(plugin, curved, p, 4, seed).vector for p in parts)
            error = gradients.distance(one + three, whole)
            assert error < CLOSE, (
                f"cut into micro-batches the gradient differs by {error:.2g} of it: some number "
                f"is taken over the micro-batch, a mean for instance"
            )

    def test_samples_do_not_mix(self, make: Make, curved: Any) -> None:
        """In another order the samples give the same gradient."""
        from headwater.testing import gradients

        rollout = gradients.rollout_of(curved, 4, self.steps, make().upstream)
        found = gradients.gradient(make(), curved, gradients.rows(rollout, [2, 0, 3, 1]), 4)
        expected = gradients.gradient(make(), curved, rollout, 4)
        error = gradients.distance(found.vector, expected.vector)
        assert error < CLOSE, f"in another order the gradient differs by {error:.2g} of it"

    def test_exact_is_true(self, make: Make, flow: Any, curved: Any) -> None:
        """One that declares `exact = True` gives the closed-form gradient of a linear flow, and
        full backpropagation's of a curved one."""
        from headwater.testing import gradients

        if not getattr(make(), "exact", False):
            return
        for steps in (1, 2, self.steps):
            rollout = gradients.rollout_of(flow, 3, steps, make().upstream)
            found = gradients.gradient(make(), flow, rollout, 5).gradient
            for name, expected in gradients.closed_form(flow, rollout, make(), 5).items():
                error = gradients.distance(found[name], expected)
                assert error < CLOSE, (
                    f"it declares exact = True; its gradient in {name} of a linear flow of {steps} "
                    f"steps differs from the exact one by {error:.2g} of it"
                )
        rollout = gradients.rollout_of(curved, 3, self.steps, make().upstream)
        bent = gradients.gradient(make(), curved, rollout, 5)
        error = gradients.distance(bent.vector, gradients.by_autograd(curved, rollout, make(), 5))
        assert error < CLOSE, (
            f"it declares exact = True; on a curved flow its gradient differs from the exact one "
            f"by {error:.2g} of it"
        )

    def test_its_work_is_what_it_says(self, make: Make, flow: Any) -> None:
        """`plan` repeats `build_surrogate` on zeros and must count the real run's forwards."""
        import attrs
        import torch

        from headwater.testing import gradients

        size = 2
        rollout = gradients.rollout_of(flow, size, self.steps, make().upstream)
        zeros = attrs.evolve(
            rollout,
            latents=torch.zeros_like(rollout.latents),
            velocities=torch.zeros_like(rollout.latents[:-1]),
        )
        for seed in range(3):
            found = gradients.gradient(make(), flow, rollout, size, seed)
            flow.evaluated = 0
            gradients.build(make(), flow, zeros, seed)
            assert flow.evaluated == found.built, (
                f"building a surrogate evaluates {found.built} velocities, {flow.evaluated} on a "
                f"rollout of zeros: a plan would be wrong"
            )
            said = found.diagnostics.forwards * len(found.surrogate.rollout.batch)
            assert said == found.evaluated, (
                f"its surrogate accounts for {said} velocities and its hooks evaluate "
                f"{found.evaluated}; say the rest in Surrogate.measurements"
            )
