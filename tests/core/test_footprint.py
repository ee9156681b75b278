"""What `plan` says of memory, against what the allocator's events say of a run."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn

from headwater.cli import main
from headwater.composition import compose
from headwater.flops import of_velocity
from headwater.live_bytes import bytes_of, peak_bytes
from headwater.loop import train
from headwater.memory import peak_memory
from headwater.plan import plan
from headwater.types import Batch, Prompt, Rollout

PLUGINS = Path(__file__).parents[2] / "plugins"
SHORT = ["steps=2", "evaluation.count=4", "evaluation.every=2", "output.trackers=[]"]


def planned_and_measured(tmp_path, file, mode, *overrides):
    """Most activation bytes of a backward stage: as planned, and of the second optimizer step."""
    sets = [*SHORT, *overrides, f'engine.mode="{mode}"']
    memory = plan(compose(file, sets), (mode,))["memory"]
    summary = train(compose(file, sets), tmp_path / "run")
    return max(memory["decoding"], memory["engine"][mode]), summary.peak_memory_bytes


# 2 %: kernels hold small buffers of their own that no storage shows.
@pytest.mark.parametrize("mode", ["stream", "joint", "fused"])
def test_the_plan_gives_the_peak_of_an_endpoint_estimator(tmp_path, mode):
    file = PLUGINS / "flowbp" / "examples" / "flowbp-sparse.toml"
    planned, measured = planned_and_measured(tmp_path, file, mode, "backbone.train=full")
    assert planned == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("middle", ["recompute", "cached"])
def test_the_plan_gives_the_peak_of_jagg(tmp_path, middle):
    file = PLUGINS / "jagg" / "examples" / "jagg.toml"
    sets = ["estimator.basis=linear", f"estimator.middle={middle}", "prompts.per_step=2"]
    planned, measured = planned_and_measured(tmp_path, file, "stream", *sets)
    assert planned == pytest.approx(measured, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("middle", ["recompute", "cached"])
@pytest.mark.parametrize("mode", ["joint", "fused"])
def test_the_plan_gives_the_peak_of_jagg_in_every_mode(tmp_path, mode, middle):
    file = PLUGINS / "jagg" / "examples" / "jagg.toml"
    sets = ["estimator.basis=linear", f"estimator.middle={middle}", "prompts.per_step=2"]
    planned, measured = planned_and_measured(tmp_path, file, mode, *sets)
    assert planned == pytest.approx(measured, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["stream", "joint", "fused"])
@pytest.mark.parametrize("train_what", ["lora", "full"])
@pytest.mark.parametrize(
    "file",
    [
        *("flowbp/examples/flowbp-bridge.toml", "flowbp/examples/flowbp-lagrange.toml"),
        *("classics/examples/draft-lv.toml", "classics/examples/bptt.toml"),
        *("leapalign/examples/leapalign.toml", "grpo/examples/flow-grpo.toml"),
    ],
)
def test_the_plan_gives_the_peak_of_every_kind(tmp_path, file, train_what, mode):
    sets = [f"backbone.train={train_what}", "prompts.per_step=4"]
    planned, measured = planned_and_measured(tmp_path, PLUGINS / file, mode, *sets)
    assert planned == pytest.approx(measured, rel=0.02)


def test_streaming_holds_one_evaluation_and_the_joint_backward_all_of_them():
    file = PLUGINS / "flowbp" / "examples" / "flowbp-sparse.toml"
    few, many = (
        plan(compose(file, ["steps=1", f"estimator.k={k}"]), ("stream", "joint"))["memory"][
            "engine"
        ]
        for k in (1, 4)
    )
    assert many["stream"] == few["stream"]
    assert many["joint"] > 2.5 * many["stream"]


def test_every_kind_of_bytes_is_that_of_its_tensors():
    file = PLUGINS / "grpo" / "examples" / "flow-grpo.toml"
    sets = ["backbone.train=full", "algorithm.reference=copy", "algorithm.beta=0.1"]
    run = compose(file, sets)
    memory = plan(run, ("stream",))["memory"]
    table = run.file
    count = memory["parameters"]["trainable"]
    assert memory["gradients"] == memory["reference"] == 4 * count
    assert memory["optimizer"] == memory["average"] == 8 * count
    samples = table.prompts.per_step * table.prompts.group * table.algorithm.core["updates"]
    states = (2 * table.rollout.steps + 1) * samples * 16 * 4 * 4
    assert memory["rollout"] == 4 * states
    parts = ("gradients", "optimizer", "average", "reference", "rollout", "conditioning")
    held = sum(memory["weights"].values()) + sum(memory[key] for key in parts)
    assert memory["resident"] == held
    most = max(memory["engine"]["stream"], memory["decoding"], memory["sampling"])
    assert memory["peak"]["stream"] == held + most


def test_mixed_precision_halves_activations_and_keeps_a_copy_of_the_weights():
    file = PLUGINS / "flowbp" / "examples" / "flowbp-sparse.toml"
    plain, mixed = (
        plan(compose(file, ["backbone.train=full", f"engine.precision={p}"]), ("stream",))["memory"]
        for p in ("full", "bfloat16")
    )
    counts = mixed["parameters"]
    assert mixed["autocast"] == 2 * (counts["trainable"] + counts["frozen"])
    assert mixed["engine"]["stream"] < 0.75 * plain["engine"]["stream"]
    assert mixed["weights"] == plain["weights"]


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)


def work_of(model, x):
    def work():
        y = model(x)
        return torch.autograd.grad(y.square().sum(), x)

    return work


def test_meta_bytes_equal_the_allocators_for_a_plain_network():
    x = torch.randn(32, 64)
    model = network("cpu")
    work_of(model, x.requires_grad_())()
    measured = peak_memory(work_of(model, x))[1]
    blank = x.detach().to("meta").requires_grad_()
    assert peak_bytes(work_of(network("meta"), blank))[1] == pytest.approx(measured, rel=0.02)


def test_views_and_in_place_results_count_once():
    x = torch.empty(100, device="meta")

    def work():
        y = x * 2
        z = y.view(10, 10).t()
        z.add_(1)
        del y, z
        return x + 1

    assert peak_bytes(work)[1] == 400
    assert bytes_of({"a": x, "b": x}) == 400


def test_attention_never_holds_its_score_matrix():
    q = torch.empty(1, 4, 4096, 64, device="meta", dtype=torch.bfloat16)
    out, peak = peak_bytes(lambda: F.scaled_dot_product_attention(q, q, q))
    assert out.shape == q.shape
    assert (
        peak < 2 * q.numel() * 2
    )  # the output and a number a row; the scores alone would be 134 MB
    assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"


def test_a_backbone_that_does_not_say_has_no_memory_plan(monkeypatch):
    run = compose(PLUGINS / "tiny" / "examples" / "tiny-leapalign.toml", ["steps=1"])
    monkeypatch.setattr(type(run.backbone.plugin), "loads_on_meta", False)
    assert plan(run, ("stream",))["memory"] is None


class Linear:
    """A velocity of one matrix product."""

    def __init__(self):
        self.matrix = torch.nn.Parameter(torch.empty(48, 48, device="meta"))

    def velocity(self, x, sigma, conditioning):
        return (x.flatten(1) @ self.matrix).view_as(x)


def test_flops_are_two_for_each_multiplication_and_addition():
    states = torch.empty(3, 5, 3, 4, 4, device="meta")
    batch = Batch((Prompt(""),) * 5, None, (0,) * 5, (0,) * 5, 4, 4, 2)
    forward, backward = of_velocity(Linear(), Rollout(batch, states, torch.tensor([1.0, 0.5, 0.0])))
    assert forward == 2 * 48 * 48
    assert backward == forward  # the weight's gradient; the input asks for none


def test_plans_side_by_side_and_their_flops():
    files = [PLUGINS / "flowbp" / "examples" / "flowbp-sparse.toml"] * 2
    sets = ["--set", "steps=2"]
    result = CliRunner().invoke(main, ["plan", *map(str, files), *sets])
    assert result.exit_code == 0, result.output
    assert result.output.count("flowbp-sparse") >= 4
    found = plan(compose(files[0], ["steps=2"]), ("stream",))
    flops, total = found["memory"]["flops"], found["total"]
    each = 2  # network evaluations of a guided velocity
    expected = total["forwards"] // each * flops["forward"]
    assert total["flops"] == expected + total["backwards"] // each * flops["backward"]
    # Two products for each in the backward of a trained layer, but the input layer's: near 2.
    assert 1.0 < flops["backward"] / flops["forward"] < 2.0
