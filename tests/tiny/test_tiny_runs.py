"""The whole path on the real tiny model: every estimator, engine mode and micro-batch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headwater.composition import compose
from headwater.loop import train
from headwater.stage import open_stage
from headwater.trainer import Trainer

FILE = Path(__file__).parents[2] / "plugins" / "tiny" / "examples" / "tiny-leapalign.toml"
SMALL = [
    "steps=2",
    "prompts.per_step=4",
    "rollout.steps=5",
    "evaluation.count=4",
    "output.trackers=[]",
]
DOUBLE = ['backbone.dtype="float64"', 'reward.preference.dtype="float64"']
ESTIMATORS = [
    "bptt",
    "draft-k",
    "draft-lv",
    "refl",
    "drtune",
    "leapalign",
    "flowbp-sparse",
    "flowbp-bridge",
    "flowbp-lagrange",
    "surrogate",
]


def gradient(*overrides):
    """All gradients of the first optimizer step as one vector."""
    trainer = Trainer(open_stage(compose(FILE, [*SMALL, *overrides]), "cpu"))
    trainer._gradient(0, measure_memory=False)
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values()])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_micro_batches_and_modes_give_one_gradient(name):
    choice = f'estimator={{use="{name}"}}'
    margin = "algorithm.margin=2.0"  # every sample has a gradient
    full = gradient(choice, margin, *DOUBLE, "backbone.train=full", "prompts.micro_batch=4")
    assert full.norm() > 0
    for size, mode in ((2, "joint"), (1, "fused")):
        sets = [f"prompts.micro_batch={size}", f"engine.mode={mode}", "backbone.train=full"]
        cut = gradient(choice, margin, *DOUBLE, *sets)
        # float64: sums are taken in another order
        assert float((cut - full).norm() / full.norm()) < 1e-12


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_same_seed_gives_the_same_bits_on_the_tiny_model(tmp_path, kind):
    sets = [*SMALL, "estimator={use='flowbp-lagrange'}", f"backbone.train={kind}"]
    saved = []
    for name in ("a", "b"):
        train(compose(FILE, sets), tmp_path / name)
        folder = tmp_path / name / "checkpoints" / "step-000002"
        saved.append(load_file(folder / "weights.safetensors"))
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][key], saved[1][key]) for key in saved[0])


def test_a_bfloat16_backbone_trains_with_finite_gradients():
    found = gradient("backbone.dtype=bfloat16", "algorithm.margin=2.0")
    assert found.dtype == torch.float32  # the LoRA's own
    assert found.isfinite().all()
    assert found.abs().sum() > 0
