"""Runs the cases of these tests in one process of several; started by torchrun, or alone.

    worker.py OUT CASE...

Writes OUT/CASE.safetensors from the first process: gradients of the first step (`grad/NAME`), weights
after the steps (`NAME`), and OUT/CASE.json: metrics of each step, and what was drawn.
"""

import json
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from safetensors.torch import save_file

from headwater import processes, sharding, zero
from headwater.composition import compose
from headwater.geometry import rollout_draws, share_of
from headwater.stage import open_stage
from headwater.trainer import Trainer

FILE = Path(__file__).with_name("run.toml")
DOUBLE = ['backbone.dtype="float64"', 'reward.preference.dtype="float64"']
GRPO = [
    'algorithm={use="flow-grpo",clip=1e-3}',
    'dynamics={use="dance-sde"}',
    "prompts.per_step=2",
    "prompts.group=4",
]
BRIDGE = ['estimator={use="flowbp-bridge",k=3}']


def jagg(**settings):
    table = {"window": 3, "routed": 0.6, **settings}
    text = ",".join(f"{k}={json.dumps(v)}" for k, v in table.items())
    return [*GRPO, f'estimator={{use="jagg",{text}}}']


CASES = {
    **{
        f"direct-{mode}": [*DOUBLE, *BRIDGE, f'engine.mode="{mode}"']
        for mode in ("stream", "joint", "fused")
    },
    "direct-lora": [*DOUBLE, *BRIDGE, 'backbone.train="lora"'],
    "direct-single": BRIDGE,
    "jagg-single": [*GRPO, *jagg(middle="recompute"), 'engine.mode="joint"'],
    "fused-single": [*GRPO, *jagg(middle="cached"), 'engine.mode="fused"'],
    "lora-single": [*BRIDGE, 'backbone.train="lora"'],
    "direct-autocast": [*BRIDGE, 'engine.precision="bfloat16"'],
    "grpo-exact": [*DOUBLE, *GRPO, 'estimator={use="exact"}'],
    "grpo-jagg-stream": [*DOUBLE, *jagg(middle="cached")],
    "grpo-jagg-kept": [*DOUBLE, *jagg(middle="recompute"), 'engine.mode="joint"'],
    "grpo-jagg-fused": [*DOUBLE, *jagg(middle="cached"), 'engine.mode="fused"'],
    "grpo-kl": [
        *DOUBLE,
        *GRPO,
        'estimator={use="exact"}',
        "algorithm.beta=0.1",
        'algorithm.reference="copy"',
    ],
    # Detector scores are 0 or 1: groups without any spread are skipped, often all of one process.
    "grpo-skipped": [
        *('backbone.dtype="float64"', *GRPO, 'estimator={use="exact"}'),
        'reward={detector={use="tiny-detector"}}',
        *("prompts.per_step=2", "prompts.group=2"),
    ],
}


def gradient(parameter):
    if zero.asked_for():
        from deepspeed.utils import safe_get_full_grad

        return safe_get_full_grad(parameter)
    return parameter.grad


def run(name, out, device):
    trainer = Trainer(open_stage(compose(FILE, CASES[name]), device))
    draws = rollout_draws(trainer.stage.run, 0)
    own = share_of(draws, processes.rank(), processes.world())
    trainer.update.begin()
    trainer._gradient(0, measure_memory=False)
    trainer.update.reduce()
    grads = {f"grad/{n}": gradient(p) for n, p in trainer.parameters.items()}
    found = {k: v.clone() for k, v in sharding.whole(grads).items() if v is not None}
    trainer.collected_for = -1
    metrics = [trainer.step(index).metrics for index in range(trainer.stage.run.file.steps)]
    found |= sharding.whole({n: p.detach() for n, p in trainer.parameters.items()})
    seeds = [seed for part in processes.gathered([d.seed for d in own]) for seed in part]
    if processes.first():
        save_file(
            {k: v.contiguous().clone() for k, v in found.items()}, out / f"{name}.safetensors"
        )
        sharded = any(sharding.is_shard(p) for p in trainer.parameters.values())
        record = {"metrics": metrics, "seeds": seeds, "sharded": sharded}
        (out / f"{name}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    torch.set_num_threads(1)
    state = PartialState()
    folder = Path(sys.argv[1])
    for case in sys.argv[2:]:
        run(case, folder, str(state.device))
    if processes.world() > 1:
        state.destroy_process_group()
