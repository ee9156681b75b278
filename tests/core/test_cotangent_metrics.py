"""The metric `cotangent_norm/STEP` of an optimizer step."""

import json
from pathlib import Path

import pytest
import torch

from headwater.composition import compose
from headwater.geometry import rollout_draws
from headwater.stage import open_stage
from headwater.trainer import Trainer
from support.launching import launch

EXAMPLE = Path(__file__).parents[2] / "plugins" / "tiny" / "examples" / "tiny-leapalign.toml"


def norms(path, *sets):
    metrics = Trainer(open_stage(compose(path, sets), "cpu")).step(0).metrics
    return {n.partition("/")[2]: v for n, v in metrics.items() if n.startswith("cotangent_norm/")}


def test_the_last_steps_norm_is_its_step_size_times_the_rewards_gradient(run_file):
    path, sets = run_file(), ["estimator.use=toy-last", "prompts.per_step=6"]
    found = norms(path, *sets)
    stage = open_stage(compose(path, sets), "cpu")
    rollout = stage.sample(rollout_draws(stage.run, 0), 0)
    image = torch.sigmoid(rollout.latents[-1])
    gradient = image * (1 - image) / 48 / 6  # of the mean over 48 values and six samples
    assert list(found) == ["4"]
    assert found["4"] == pytest.approx(0.2 * float(gradient.norm()), rel=1e-6)


def test_micro_batches_change_no_norm(run_file):
    path, sets = run_file(), ["prompts.per_step=6"]
    whole = norms(path, *sets, "prompts.micro_batch=6")
    assert list(whole) == ["0", "1", "2", "3", "4"]
    for size in (1, 2):
        assert norms(path, *sets, f"prompts.micro_batch={size}") == pytest.approx(whole, rel=1e-12)


@pytest.mark.long
def test_two_processes_log_the_norm_of_all_their_samples(tmp_path):
    sets = ["steps=1", "prompts.per_step=4", "rollout.steps=4", "evaluation.count=2"]
    sets += ['backbone.dtype="float64"', 'reward.preference.dtype="float64"']
    rows = []
    for count in (1, 2):
        out = tmp_path / str(count)
        options = [part for text in sets for part in ("--set", text)]
        done = launch(count, "-m", "headwater", "run", EXAMPLE, *options, "--out", out)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        (row,) = (line for line in lines if "grad_norm" in line)
        rows.append({n: v for n, v in row.items() if n.startswith("cotangent_norm/")})
    assert rows[0]
    assert rows[1] == pytest.approx(rows[0], rel=1e-9)
