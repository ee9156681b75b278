"""JAGG through the loop on the tiny model, with Flow-GRPO: gradient, plan, warnings, resumption."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from headwater.composition import compose
from headwater.errors import InputError
from headwater.plan import plan
from headwater.stage import open_stage
from headwater.trainer import Trainer

FILE = Path(__file__).parents[2] / "plugins" / "grpo" / "examples" / "flow-grpo.toml"
SMALL = [
    "steps=2",
    "prompts.per_step=2",
    "prompts.group=3",
    "prompts.micro_batch=3",
    "rollout.steps=7",
    "rollout.guidance=1.0",
    "backbone.train=full",
    'backbone.dtype="float64"',
    'reward.preference.dtype="float64"',
    "evaluation.count=2",
    "output.trackers=[]",
]


def sets(use: str = "jagg", **settings) -> list[str]:
    lines = [f"estimator.{key}={value!r}".replace("'", '"') for key, value in settings.items()]
    return [*SMALL, f"estimator.use={use}", *lines]


def gradient(*overrides: str, step: int = 0) -> torch.Tensor:
    trainer = Trainer(open_stage(compose(FILE, overrides), "cpu"))
    trainer._gradient(step, measure_memory=False)
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values()])


@pytest.fixture(scope="module")
def exact() -> torch.Tensor:
    return gradient(*sets("exact"))


def test_a_routed_fraction_of_zero_is_the_estimator_exact(exact) -> None:
    with pytest.warns(UserWarning, match="saves nothing"):
        found = gradient(*sets(routed=0.0, window=3))
    assert float((found - exact).norm() / exact.norm()) < 1e-12


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    return gradient(*sets(window=3, routed=1.0))


@pytest.mark.parametrize(
    ("mode", "middle", "size"),
    [("stream", "cached", 3), ("joint", "recompute", 6), ("fused", "cached", 2)],
)
def test_modes_cache_and_micro_batches_change_nothing(exact, plain, mode, middle, size) -> None:
    settings = sets(window=3, routed=1.0, middle=middle)
    found = gradient(*settings, f"engine.mode={mode}", f"prompts.micro_batch={size}")
    assert float((found - plain).norm() / plain.norm()) < 1e-10
    assert float((plain - exact).norm() / exact.norm()) > 1e-3


def test_a_plan_counts_the_groups_as_the_run_does() -> None:
    run = compose(FILE, sets(window=3, routed=1.0, middle="cached"))
    planned = plan(run)
    trainer = Trainer(open_stage(run, "cpu"))
    done = [trainer.step(i) for i in range(2)]
    assert planned["total"]["forwards"] == sum(step.forwards for step in done)
    assert planned["total"]["backwards"] == sum(step.backwards for step in done)
    assert all(step.metrics["estimator/routed_groups"] == 2 for step in done)


def test_a_measured_run_trains_and_reports_its_cosines() -> None:
    settings = {"window": 3, "routed": "auto", "basis": "calibrated", "threshold": 0.5}
    trainer = Trainer(open_stage(compose(FILE, sets(**settings)), "cpu"))
    steps = [trainer.step(i).metrics for i in range(2)]
    assert [("estimator/cosine_group_0" in metrics) for metrics in steps] == [True, False]
    assert 0.5 < steps[0]["estimator/cosine_group_0"] <= 1
    assert steps[0]["estimator/routed_groups"] == 0
    assert steps[1]["estimator/routed_groups"] >= 1


@pytest.mark.parametrize(
    "settings", [{"window": 2}, {"window": 1}, {"routed": 0.0}, {"window": 3, "nodes": [0, 1, 2]}]
)
def test_a_run_that_saves_nothing_is_warned_of(settings) -> None:
    with pytest.warns(UserWarning, match="saves nothing"):
        compose(FILE, sets(**settings))


def test_a_run_of_two_trained_steps_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="saves nothing"):
        compose(FILE, [*sets(), "algorithm.use=flow-grpo-fast"])


def test_a_calibrated_basis_of_steps_that_change_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="trained steps change"):
        compose(FILE, [*sets(basis="calibrated", window=3), "algorithm.use=dance-grpo"])


def test_the_default_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compose(FILE, sets())


def test_an_endpoint_algorithm_is_refused_with_what_would_work() -> None:
    file = FILE.parents[2] / "direct" / "examples" / "direct.toml"
    with pytest.raises(InputError, match=r"needs a per-step upstream.*flow-grpo"):
        compose(file, ["estimator.use=jagg"])
