"""What makes a run smaller: 8-bit moments, rollouts on the CPU, a decoder that waits there."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headwater.composition import compose
from headwater.errors import InputError
from headwater.loop import train
from headwater.optimization import make_optimizer
from headwater.plan import plan
from headwater.stage import open_stage
from headwater.trainer import Trainer

PLUGINS = Path(__file__).parents[2] / "plugins"
FILE = PLUGINS / "tiny" / "examples" / "tiny-leapalign.toml"
SMALL = ["rollout.steps=4", "prompts.per_step=2", "evaluation.count=2", "output.trackers=[]"]
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None,
    reason='an optional extra of core, "headwater[8bit]"',
)
EIGHT = ["optimizer.states=8bit", "backbone.train=full", "optimizer.lr=1e-3"]


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "weights.safetensors")


@needs_bitsandbytes
def test_eight_bit_moments_step_nearly_like_full_ones():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(8192, generator=generator)
    table = compose(FILE, SMALL).file.optimizer
    ends = []
    for states in ("full", "8bit"):
        parameter = torch.nn.Parameter(start.clone())
        object.__setattr__(table, "states", states)
        optimizer = make_optimizer({"w": parameter}, table)
        noise = torch.Generator().manual_seed(1)
        for _ in range(5):
            parameter.grad = torch.randn(8192, generator=noise) + 0.5
            optimizer.step()
        ends.append(parameter.detach() - start)
    # 8 bits a moment: the direction agrees to a few per cent.
    assert float((ends[0] - ends[1]).norm() / ends[0].norm()) < 0.05
    assert not torch.equal(*ends)


@needs_bitsandbytes
def test_a_run_with_eight_bit_moments_resumes_to_the_same_bits(tmp_path):
    sets = [*SMALL, *EIGHT, "output.checkpoint_every=2", "evaluation.every=100"]
    train(compose(FILE, [*sets, "steps=4"]), tmp_path / "straight")
    train(compose(FILE, [*sets, "steps=2"]), tmp_path / "broken")
    train(compose(FILE, [*sets, "steps=4"]), tmp_path / "broken", resume=True)
    one, two = weights(tmp_path / "straight", 4), weights(tmp_path / "broken", 4)
    for name in one:
        assert torch.equal(one[name], two[name])


@needs_bitsandbytes
def test_the_plan_counts_eight_bit_moments():
    memory = plan(compose(FILE, [*SMALL, *EIGHT]), ("stream",))["memory"]
    trainer = Trainer(open_stage(compose(FILE, [*SMALL, *EIGHT]), "cpu"))
    trainer.step(0)
    # Codebooks of 256 numbers are shared by all tensors and left out.
    moments = ("state1", "state2", "absmax1", "absmax2")
    held = sum(
        entry[key].numel() * entry[key].element_size()
        for entry in trainer.update.optimizer.state.values()
        for key in moments
        if key in entry
    )
    assert memory["optimizer"] == pytest.approx(held, rel=0.01)


def test_eight_bit_moments_without_their_library_are_an_input_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes.optim", None)
    table = compose(FILE, [*SMALL, *EIGHT]).file.optimizer
    with pytest.raises(InputError, match="headwater\\[8bit\\]"):
        make_optimizer({"w": torch.nn.Parameter(torch.zeros(3))}, table)


def test_a_rollout_that_waits_on_the_cpu_gives_the_same_gradient():
    file = PLUGINS / "grpo" / "examples" / "flow-grpo.toml"
    sets = ["prompts.per_step=2", "prompts.group=2", "rollout.steps=4", "algorithm.updates=2"]
    grads = []
    for keep in ("device", "cpu"):
        trainer = Trainer(open_stage(compose(file, [*sets, f"rollout.keep={keep}"]), "cpu"))
        trainer._gradient(0, measure_memory=False)
        grads.append(torch.cat([p.grad.flatten() for p in trainer.parameters.values()]))
    assert torch.equal(*grads)
    memory = [
        plan(compose(file, [*sets, f"rollout.keep={keep}"]), ("stream",))["memory"]["rollout"]
        for keep in ("device", "cpu")
    ]
    assert memory[0] > 0 == memory[1]
