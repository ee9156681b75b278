"""The contract of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from headwater.testing.estimator_gradients import CLOSE, GradientContract


class EstimatorContract(GradientContract):
    """What an estimator owes: a valid surrogate, the same for everybody, and its gradient."""

    kind: ClassVar[str] = "estimator"
    hooks: ClassVar[tuple[str, ...]] = ("build_surrogate",)
    sizes: ClassVar[tuple[int, ...]] = (1, 2, 3, 25)
    """Other numbers of steps; at each it works, or says in a ValueError why not."""

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """Its run: with an algorithm that gives the upstream it needs."""
        tables: dict[str, Any] = {"estimator": own, "rollout": {"steps": self.steps}}
        if plugin.upstream == "per-step":
            tables |= {"algorithm": {"use": "toy-policy"}, "dynamics": {"use": "toy-noise"}}
        return tables

    def test_its_surrogate_is_valid(self, make: Callable[[], Any], flow: Any) -> None:
        """Groups in order and disjoint, active steps among theirs, a finite basis, couplings in
        0 to 1, and where one is not 0 the group's first step active; for every seed."""
        from headwater.testing import gradients, surrogates

        for size in (1, 3):
            rollout = gradients.rollout_of(flow, size, self.steps, make().upstream)
            for seed in range(8):
                found = gradients.build(make(), flow, rollout, seed)
                fault = surrogates.fault(found, rollout, make())
                assert not fault, f"seed {seed}: {fault}"

    def test_any_number_of_steps_works_or_is_refused(
        self, make: Callable[[], Any], flow: Any
    ) -> None:
        """A rollout too short for its settings is a ValueError with a sentence, no crash."""
        from headwater.testing import gradients, surrogates

        for steps in self.sizes:
            rollout = gradients.rollout_of(flow, 2, steps, make().upstream)
            try:
                found = gradients.build(make(), flow, rollout)
            except ValueError as error:
                assert len(str(error).split()) > 3, f"{steps} steps: the error says {error!s}"
                continue
            fault = surrogates.fault(found, rollout, make())
            assert not fault, f"{steps} steps: {fault}"

    def test_it_builds_on_latents_of_any_shape(self, make: Callable[[], Any]) -> None:
        """Only the first axis of a latent is fixed: packed, images, odd sizes, one number."""
        from headwater.testing import gradients
        from headwater.testing.toys import LinearFlow

        for latent in ((1,), (5, 7), (3, 4, 5), (2, 1, 3, 2)):
            flow = LinearFlow(latent)
            rollout = gradients.rollout_of(flow, 2, self.steps, make().upstream)
            found = gradients.gradient(make(), flow, rollout, 2)
            assert found.vector.isfinite().all(), f"latent {latent}: the gradient is not finite"

    def test_types_are_at_least_float32(self, make: Callable[[], Any]) -> None:
        """float64 stays float64; states stored in bfloat16 give float32."""
        import torch

        from headwater.testing import gradients
        from headwater.testing.toys import LinearFlow

        kinds = ((torch.float64, "float32", torch.float64), (torch.float32, "bfloat16", None))
        for dtype, store, expected in kinds:
            flow = LinearFlow(dtype=dtype)
            rollout = gradients.rollout_of(flow, 2, self.steps, make().upstream, store=store)
            found = gradients.build(make(), flow, rollout)
            for name in ("endpoint", "sample_weights"):
                value = getattr(found, name)
                wanted = expected or torch.float32
                assert value is None or value.dtype == wanted, (
                    f"{name} of {dtype} states stored as {store} is {value.dtype}, expected "
                    f"{wanted}; take states by rollout.state(i), which casts half types up"
                )

    def test_the_endpoint_is_what_it_declares(self, make: Callable[[], Any], flow: Any) -> None:
        """The sample, a posterior mean, the sample and re-noised copies, or none."""
        from headwater.testing import gradients, surrogates

        rollout = gradients.rollout_of(flow, 3, self.steps, make().upstream)
        for seed in range(4):
            found = gradients.build(make(), flow, rollout, seed)
            fault = surrogates.endpoint_fault(found, rollout, make().endpoint)
            assert not fault, fault

    def test_one_seed_gives_one_surrogate(self, make: Callable[[], Any], flow: Any) -> None:
        """The generator decides every draw, and the process's own generators none."""
        import torch

        from headwater.testing import gradients, surrogates

        rollout = gradients.rollout_of(flow, 2, self.steps, make().upstream)
        first = gradients.build(make(), flow, rollout, 3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            before = torch.get_rng_state()
            second = gradients.build(make(), flow, rollout, 3)
            drawn = not torch.equal(before, torch.get_rng_state())
        fault = surrogates.difference(first, second)
        assert not fault, f"{fault}; draw everything from the generator that is handed in"
        assert not drawn, "it draws from torch's global generator; use the one that is handed in"

    def test_other_seeds_give_other_surrogates(self, make: Callable[[], Any], flow: Any) -> None:
        """If it draws from the generator at all, the draw makes a difference."""
        import torch

        from headwater.testing import gradients, surrogates

        rollout = gradients.rollout_of(flow, 2, self.steps, make().upstream)
        generator = torch.Generator().manual_seed(0)
        before = generator.get_state()
        first = gradients.build(make(), flow, rollout, generator)
        if torch.equal(before, generator.get_state()):
            return
        others = [gradients.build(make(), flow, rollout, seed) for seed in range(32)]
        assert any(surrogates.difference(first, other) for other in others), (
            "it draws from the generator, and 32 seeds give one surrogate"
        )

    def test_the_steps_do_not_depend_on_the_samples(
        self, make: Callable[[], Any], flow: Any
    ) -> None:
        """Every micro-batch of an optimizer step gets the same steps, by the generator alone."""
        from headwater.testing import gradients

        rollout = gradients.rollout_of(flow, 5, self.steps, make().upstream)
        parts = ([0, 1, 2, 3, 4], [3], [4, 2])
        plans = []
        for part in parts:
            found = gradients.build(make(), flow, gradients.rows(rollout, part), 1)
            plans.append([(g.steps, g.active) for g in found.groups])
        assert plans[0] == plans[1] == plans[2], (
            "its steps depend on the samples of the micro-batch, or on how many there are"
        )

    def test_building_changes_no_cached_tensor(self, make: Callable[[], Any], flow: Any) -> None:
        """The rollout is used again: by other updates, and by other estimators in a comparison."""
        import torch

        from headwater.testing import gradients

        rollout = gradients.rollout_of(flow, 2, self.steps, make().upstream)
        cached = (rollout.latents, rollout.velocities, rollout.sigmas)
        before = [t.clone() for t in cached if t is not None]
        gradients.gradient(make(), flow, rollout, 2)
        after = [t for t in cached if t is not None]
        assert all(map(torch.equal, before, after)), "it works in place on the rollout's tensors"

    def test_a_rollout_without_velocities_will_do(self, make: Callable[[], Any], flow: Any) -> None:
        """`rollout.velocity(i)` derives them from Euler steps; noisy ones are evaluated anew."""
        import attrs

        from headwater.testing import gradients

        rollout = gradients.rollout_of(flow, 2, self.steps, make().upstream)
        bare = attrs.evolve(rollout, velocities=None)
        expected = gradients.gradient(make(), flow, rollout, 2).vector
        found = gradients.gradient(make(), flow, bare, 2).vector
        error = gradients.distance(found, expected)
        assert error < CLOSE, f"without cached velocities the gradient differs by {error:.2g} of it"
