"""Whole runs: a small random HPS checkpoint trains the tiny backbone for two steps."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from headwater.cli import main
from headwater.composition import compose
from headwater.errors import InputError
from headwater.loop import train

EXAMPLES = Path(__file__).parents[2] / "plugins" / "rewards-clip" / "examples"
TOML = """
name = "hps"
seed = 5
steps = 2
[backbone]
use = "tiny"
[prompts]
file = "tiny:train"
per_step = 2
[rollout]
steps = 4
guidance = 2.0
height = 32
width = 32
[reward.hps]
use = "hpsv2.1"
[algorithm]
use = "direct"
[estimator]
use = "leapalign"
[optimizer]
lr = 1e-3
[output]
trackers = ["jsonl"]
"""
NAMES = ["hpsv2.1", "pickscore", "clipscore"]


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    return path


def table(small, use, **more):
    """An override that sets a whole reward table."""
    sizes = ", ".join(f"{k} = {v!r}" for k, v in small.table.items())
    rest = "".join(f", {k} = {v!r}" for k, v in more.items())
    return (
        f"reward.hps={{use={use!r}, model={small.pickle!r}, tokenizer={small.tokenizer!r}, "
        f"architecture={{{sizes}}}{rest}}}"
    )


@pytest.mark.parametrize("use", NAMES)
def test_a_run_with_a_small_checkpoint_trains_and_records_the_cosine(
    small, run_file, tmp_path, use
):
    train(compose(run_file, [table(small, use)]), tmp_path / "out")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    values = [row["reward/hps"] for row in found if "reward/hps" in row]
    assert len(values) == 2
    assert all(-1 <= value <= 1 for value in values)
    assert all(row["grad_norm"] > 0 for row in found if "grad_norm" in row)
    saved = (tmp_path / "out" / "run.toml").read_text()
    assert "vision_heads = 2" in saved  # the resolved file declares the sizes again
    compose(tmp_path / "out" / "run.toml")


def test_the_gradient_of_a_run_is_that_of_the_reward_alone(small, run_file):
    from headwater.stage import open_stage
    from headwater.trainer import Trainer

    one = [table(small, "hpsv2.1"), "algorithm.margin='none'"]
    percent = [table(small, "hpsv2.1", scale="percent"), "algorithm.margin='none'"]
    grads = []
    for sets in (one, percent):
        trainer = Trainer(open_stage(compose(run_file, sets), "cpu"))
        trainer._gradient(0, measure_memory=False)
        grads.append(torch.cat([p.grad.flatten() for p in trainer.parameters.values()]))
    assert float(grads[0].norm()) > 0
    torch.testing.assert_close(100 * grads[0], grads[1], rtol=1e-4, atol=1e-6)


def test_an_evaluation_measures_how_different_images_are_by_their_features(
    small, run_file, tmp_path
):
    from headwater.images import from_file
    from headwater.protocols import LoadContext

    run = compose(run_file, [table(small, "clipscore")])
    train(run, tmp_path / "run")
    out = tmp_path / "out"
    asked = ["--prompts", "tiny:eval", "--count", "2", "--seeds", "3", "--reward", "hps"]
    done = CliRunner().invoke(main, ["eval", str(tmp_path / "run"), "--out", str(out), *asked])
    assert done.exit_code == 0, done.output
    report = json.loads((out / "eval.json").read_text())
    plugin = run.rewards["hps"].plugin
    plugin.load(LoadContext("cpu"))
    for side in ("base", "aligned"):
        distances = []
        for prompt in range(2):
            files = [out / "images" / side / f"{prompt:05d}-{s}.png" for s in range(3)]
            with torch.no_grad():
                features = plugin.features(torch.stack([from_file(file) for file in files]))
            cosines = torch.nn.functional.cosine_similarity(features, features.roll(1, 0))
            distances.append(float(1 - cosines.mean()))
        found = report["diversity"]["embedding/hps"][side]["mean"]
        # float32 features; another batch rounds otherwise
        assert found == pytest.approx(sum(distances) / 2, abs=1e-5)
        assert found > 1e-3
    assert report["rewards"]["hps"]["trained"]


@pytest.mark.parametrize("use", [*NAMES, "aesthetic"])
def test_check_and_plan_need_no_weights(run_file, use, monkeypatch):
    monkeypatch.setenv("HOME", str(run_file.parent))
    for command in ("check", "plan")[: 2 if use == "hpsv2.1" else 1]:
        done = CliRunner().invoke(main, [command, str(run_file), "--set", f"reward.hps.use={use}"])
        assert done.exit_code == 0, done.output


def test_check_tells_a_wrong_path_a_wrong_tokenizer_and_sizes_that_a_folder_states(small, run_file):
    with pytest.raises(InputError, match=r"model: no file or folder '/nowhere\.pt'"):
        compose(run_file, ["reward.hps.model='/nowhere.pt'"])
    for name in ("/nowhere", "nowhere"):
        with pytest.raises(InputError, match=f"tokenizer: no folder '{name}'"):
            compose(run_file, [f"reward.hps.tokenizer='{name}'"])
    folder = table(small, "hpsv2.1").replace(small.pickle, small.folder)
    with pytest.raises(InputError, match=r"config\.json states it"):
        compose(run_file, [folder])
    with pytest.raises(InputError, match="vision_width: expected a multiple of 3, got 32"):
        compose(run_file, [table(small, "hpsv2.1").replace("vision_heads = 2", "vision_heads = 3")])
    with pytest.raises(InputError, match=r"architecture: .*unknown key; did you mean 'text_heads'"):
        compose(run_file, [table(small, "hpsv2.1").replace("text_heads", "text_head")])
    with pytest.raises(InputError, match=r"head: no file '/nowhere\.pth'"):
        compose(run_file, ["reward.hps={use='aesthetic', head='/nowhere.pth'}"])


def test_missing_weights_end_a_run_with_one_paragraph_and_code_2(run_file, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    done = CliRunner().invoke(main, ["run", str(run_file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert "HPS_v2.1_compressed.pt of xswu/HPSv2" in done.output
    assert "[reward.hps]" in done.output


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda p: p.name)
def test_the_example_is_whole(path):
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 0, done.output
