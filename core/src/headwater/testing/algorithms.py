"""The contract of an algorithm."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from headwater.testing.training import TrainingContract


class AlgorithmContract(TrainingContract):
    """What an algorithm owes: which steps are noisy and trained, what scores are worth, and the
    upstream gradient of every step."""

    kind: ClassVar[str] = "algorithm"
    hooks: ClassVar[tuple[str, ...]] = ("compute_upstream",)
    steps: ClassVar[int] = 10
    """Steps of the rollouts it is tried on."""

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """Its run: with an estimator for its upstream, and noise where it needs some."""
        tables: dict[str, Any] = {"algorithm": own, "rollout": {"steps": self.steps}}
        if plugin.upstream == "per-step":
            tables["estimator"] = {"use": "toy-each"}
        if plugin.needs_stochastic_steps:
            tables["dynamics"] = {"use": "toy-noise"}
        return tables

    @pytest.fixture
    def case(self, plugin: Any) -> Any:
        """Six samples of two prompts on a linear flow, rolled out as it asks for."""
        from headwater.testing.credits import Case

        return Case.of(plugin, self.steps)

    def test_its_steps_are_within_the_rollout(self, plugin: Any) -> None:
        """Noisy and trained steps are in 0 .. N-1, sorted, once each; noisy ones are trained."""
        from headwater.randomness import generator_of

        for step in range(0, 60, 7):
            noisy = tuple(plugin.stochastic_steps(step, self.steps))
            trained = tuple(plugin.trained_steps(step, self.steps, generator_of("c", step)))
            for name, found in (("stochastic_steps", noisy), ("trained_steps", trained)):
                fine = list(found) == sorted(set(found)) and set(found) <= set(range(self.steps))
                assert fine, f"{name}({step}, {self.steps}) is {found}"
            if plugin.upstream == "per-step":
                assert trained, f"step {step}: no step is trained"
                outside = sorted(set(trained) - set(noisy))
                assert not outside, f"steps {outside} are trained and not stochastic"
            else:
                assert not trained, "an endpoint upstream trains what the estimator says; give ()"

    def test_needs_stochastic_steps_is_true(self, plugin: Any) -> None:
        """It declares that it needs noisy steps if it asks for some, and only then."""
        asked = any(plugin.stochastic_steps(step, self.steps) for step in range(60))
        assert asked == plugin.needs_stochastic_steps, (
            f"needs_stochastic_steps is {plugin.needs_stochastic_steps}, and it asks for "
            f"{'some' if asked else 'none'}"
        )

    def test_every_process_gets_the_same_steps(self, plugin: Any) -> None:
        """Steps are a function of optimizer step, N and the generator, and of nothing else."""
        import torch

        from headwater.randomness import generator_of

        for step in (0, 1, 30):
            found = []
            for seed in (1, 2):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    noisy = plugin.stochastic_steps(step, self.steps)
                    generator = generator_of("c", step)
                    found.append((noisy, plugin.trained_steps(step, self.steps, generator)))
            assert found[0] == found[1], (
                f"optimizer step {step}: two processes would get {found[0]} and {found[1]}; draw "
                f"from the generator that is handed in, or from one seeded by the step"
            )

    def test_credit_has_a_value_for_every_sample(self, plugin: Any, case: Any) -> None:
        """Endpoint: a gradient (B', *latent). Per-step: advantages (B,) and a mask. All finite,
        at least float32, with the count of the scores."""
        import torch

        for dtype in (torch.float32, torch.float64):
            credit = case.credit(plugin, case.scores(dtype=dtype))
            assert credit.count == case.count, f"count is {credit.count}, scores.count {case.count}"
            name = "endpoint_gradient" if plugin.upstream == "endpoint" else "advantages"
            value = getattr(credit, name)
            assert value is not None, f"an upstream {plugin.upstream!r} needs {name}"
            shape = case.endpoint.shape if plugin.upstream == "endpoint" else (case.size,)
            assert value.shape == shape, f"{name} has shape {tuple(value.shape)}, not {shape}"
            assert value.isfinite().all() and value.element_size() >= 4, f"{name} is {value}"
            kept = credit.kept
            fine = kept is None or (kept.shape == (case.size,) and kept.dtype == torch.bool)
            assert fine, "kept is a bool for every sample, or None"

    def test_the_endpoint_gradient_is_the_derivative_of_its_loss(
        self, plugin: Any, case: Any
    ) -> None:
        """`credit.loss` by finite differences, in float64; a sample of weight 0 has no gradient."""
        import torch

        if plugin.upstream != "endpoint":
            return
        credit = case.credit(plugin, case.scores())
        direction = torch.ones_like(case.endpoint).cumsum(-1).cos()
        losses = [
            case.credit(plugin, case.scores(moved)).loss
            for moved in (case.endpoint + e * direction for e in (1e-5, -1e-5))
        ]
        found = (losses[0] - losses[1]) / 2e-5
        expected = float((credit.endpoint_gradient * direction).sum())
        assert abs(found - expected) <= 1e-6 * max(1e-3, abs(expected)), (
            f"its loss changes by {found:.6g}, its gradient says {expected:.6g}"
        )
        weights = torch.ones(case.size, dtype=torch.float64)
        weights[0] = 0
        muted = case.credit(plugin, case.scores(), weights=weights).endpoint_gradient
        assert not muted[0].any() and muted[1:].any(), "sample weights are not in its gradient"

    def test_better_samples_have_larger_advantages(self, plugin: Any, case: Any) -> None:
        """Within a prompt advantages rise with the score; equal scores are worth nothing."""
        import torch

        if plugin.upstream != "per-step":
            return
        scores = case.scores()
        credit, total = case.credit(plugin, scores), scores.total()
        for a in range(case.size):
            for b in range(case.size):
                if case.groups[a] == case.groups[b] and total[a] > total[b]:
                    assert credit.advantages[a] >= credit.advantages[b], (
                        f"sample {a} scores {float(total[a]):.4g}, sample {b} of its prompt "
                        f"{float(total[b]):.4g}, and has a smaller advantage"
                    )
        flat = case.credit(plugin, case.flat_scores())
        kept = torch.ones(case.size, dtype=torch.bool) if flat.kept is None else flat.kept
        assert not flat.advantages[kept].any(), "a prompt whose samples score the same has a signal"

    def test_the_order_of_samples_changes_nothing(self, plugin: Any, case: Any) -> None:
        """Permuted samples get permuted credit and a permuted upstream."""
        order = [3, 0, 5, 1, 4, 2]
        other = case.permuted(order)
        one = case.upstream(plugin, case.credit(plugin, case.scores()))
        two = other.upstream(plugin, other.credit(plugin, other.scores()))
        assert case.near(two, one[:, order]), (
            "another order of the samples gives other gradients: prompts are told by group id, "
            "samples may not be matched by position"
        )

    def test_upstream_has_a_gradient_for_every_step(self, plugin: Any, case: Any) -> None:
        """(S, B, *latent), finite, the type of the states; groups of one step and of several."""
        import torch

        credit = case.credit(plugin, case.scores())
        whole = case.upstream(plugin, credit)
        assert whole.shape == (len(case.chosen), case.size, *case.latent), (
            f"compute_upstream gives shape {tuple(whole.shape)} for {len(case.chosen)} steps of "
            f"{case.size} samples of {case.latent}"
        )
        assert whole.isfinite().all(), "compute_upstream is not finite"
        assert whole.dtype == torch.float64, f"float64 states give a {whole.dtype} upstream"
        assert whole.any(), "compute_upstream is zero for every step and sample"
        for row, step in enumerate(case.chosen):
            alone = case.upstream(plugin, credit, (step,))
            assert case.near(alone, whole[row : row + 1]), (
                f"step {step} in a group by itself has another upstream"
            )

    def test_no_credit_no_upstream(self, plugin: Any, case: Any) -> None:
        """An advantage of 0, a sample that is not kept and a zero gradient give exact zeros."""
        import attrs
        import torch

        credit = case.credit(plugin, case.scores())
        if plugin.upstream == "endpoint":
            zero = attrs.evolve(credit, endpoint_gradient=torch.zeros_like(case.endpoint))
            assert not case.upstream(plugin, zero).any(), "a zero gradient gives an upstream"
            return
        if getattr(plugin, "reference_model", "none") == "none":
            every = torch.ones(case.size, dtype=torch.bool)
            zero = torch.zeros(case.size, dtype=torch.float64)
            none = attrs.evolve(credit, advantages=zero, kept=every)
            assert not case.upstream(plugin, none).any(), "advantages of 0 give an upstream"
        kept = torch.tensor([True, False] * 3)
        found = case.upstream(plugin, attrs.evolve(credit, kept=kept))
        assert not found[:, ~kept].any(), "samples that are not kept have an upstream"

    def test_the_upstream_is_a_mean_over_n(self, plugin: Any, case: Any) -> None:
        """Twice the count n, half the upstream: the loss is (1/n) of a sum."""
        import attrs

        credit = case.credit(plugin, case.scores())
        if plugin.upstream == "endpoint":
            double = case.credit(plugin, case.scores(count=2 * case.count))
        else:
            double = attrs.evolve(credit, count=2 * credit.count)
        one, half = (case.upstream(plugin, c) for c in (credit, double))
        assert case.near(half * 2, one), "the upstream is not divided by credit.count"

    def test_the_upstream_leads_downhill(self, plugin: Any, case: Any) -> None:
        """Endpoint: -h_i times the gradient at the image, an Euler step's share. Per-step: where
        the advantage is positive, a step against it makes the drawn state likelier."""
        import torch

        credit = case.credit(plugin, case.scores())
        found = case.upstream(plugin, credit)
        if plugin.upstream == "endpoint":
            steps = [case.rollout.step_size(i) for i in case.chosen]
            sizes = torch.tensor(steps, dtype=torch.float64)
            expected = -sizes.view(-1, 1, 1, 1) * credit.endpoint_gradient
            assert case.near(found, expected), (
                "s_i is not -h_i dL/dx; use headwater.engine.euler_upstream"
            )
            return
        if getattr(plugin, "reference_model", "none") != "none":
            return  # another force pulls too
        for row, step in enumerate(case.chosen):
            slope = -(found[row] * case.log_prob_grad(step)).flatten(1).sum(1)
            advantages = credit.advantages.double()
            if credit.kept is not None:
                advantages = advantages * credit.kept
            wrong = slope * advantages < 0
            assert not wrong.any(), (
                f"step {step}: with advantages {advantages.tolist()} a step against the upstream "
                f"changes log_prob by {slope.tolist()} times its length: the sign is wrong"
            )
