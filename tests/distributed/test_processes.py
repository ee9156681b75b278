"""Two and four real processes on a CPU give what one gives, replicated and sharded."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.launching import launch

WORKER = Path(__file__).with_name("worker.py")
QUICK = ("grpo-jagg-stream",)
EXACT = (
    *("direct-stream", "direct-joint", "direct-fused", "direct-lora", "grpo-exact", "grpo-kl"),
    *("grpo-jagg-kept", "grpo-jagg-fused", "grpo-skipped"),
)


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """(processes, sharded, cases): the folder of their results, made once."""
    made = {}

    def get(processes, cases, *, sharded=False):
        key = (processes, sharded, cases)
        if key not in made:
            out = tmp_path_factory.mktemp("shared")
            done = launch(processes, WORKER, out, *cases, sharded=sharded)
            assert done.returncode == 0, done.stderr[-4000:]
            made[key] = out
        return made[key]

    return get


def largest_difference(one, other, *, gradients=False):
    left, right = load_file(one), load_file(other)
    assert left.keys() == right.keys()
    names = [name for name in left if name.startswith("grad/") == gradients]
    assert names
    worst = 0.0
    for name in names:
        scale = max(float(left[name].abs().max()), 1e-12)
        worst = max(worst, float((left[name] - right[name]).abs().max()) / scale)
    return worst


def record(folder, case):
    return json.loads((folder / f"{case}.json").read_text())


def compare(results, cases, case, *, processes=2, sharded=False, tolerance=1e-9):
    alone, together = results(1, cases), results(processes, cases, sharded=sharded)
    name = f"{case}.safetensors"
    # float64, 5 AdamW steps: sums are taken in another order, nothing else differs.
    assert largest_difference(alone / name, together / name) < tolerance
    assert largest_difference(alone / name, together / name, gradients=True) < tolerance
    one, two = record(alone, case), record(together, case)
    assert two["seeds"] == one["seeds"]
    assert two["sharded"] == (sharded and case != "direct-lora")
    for left, right in zip(one["metrics"], two["metrics"], strict=True):
        for key in ("forwards", "backwards", "groups_skipped", "policy_version"):
            assert left[key] == right[key]
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-9)
        rewards = [key for key in left if key.startswith("reward/")]
        assert rewards
        for key in (*rewards, *(("loss",) if "loss" in left else ())):
            assert left[key] == pytest.approx(right[key], rel=1e-9, abs=1e-12)
    return one, two


@pytest.mark.parametrize("case", QUICK)
def test_two_processes_train_as_one(results, case):
    compare(results, QUICK, case)


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("case", EXACT)
def test_two_processes_train_as_one_with_every_kind_of_graph(results, case, sharded):
    one, _ = compare(results, EXACT, case, sharded=sharded)
    if case == "grpo-skipped":
        skipped = [metrics["groups_skipped"] for metrics in one["metrics"]]
        assert 1 in skipped  # of two groups one, so all of one process


@pytest.mark.long
@pytest.mark.parametrize("case", QUICK)
def test_sharded_processes_train_as_one(results, case):
    compare(results, QUICK, case, sharded=True)


@pytest.mark.long
def test_four_processes_train_as_one(results):
    compare(results, QUICK, "grpo-jagg-stream", processes=4)


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
def test_the_first_float32_gradient_agrees(results, sharded):
    cases = ("direct-single",)
    alone, together = results(1, cases), results(2, cases, sharded=sharded)
    name = "direct-single.safetensors"
    assert largest_difference(alone / name, together / name, gradients=True) < 1e-4
    left = load_file(alone / name)
    right = load_file(together / name)
    grads = [n for n in left if n.startswith("grad/")]
    one = torch.cat([left[n].flatten() for n in grads])
    two = torch.cat([right[n].flatten() for n in grads])
    assert float((one - two).norm() / one.norm()) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
def test_mixed_precision_is_finite_in_two_processes(results, sharded):
    found = record(results(2, ("direct-autocast",), sharded=sharded), "direct-autocast")
    for metrics in found["metrics"]:
        assert all(torch.tensor(float(value)).isfinite() for value in metrics.values())
        assert metrics["grad_norm"] > 0
