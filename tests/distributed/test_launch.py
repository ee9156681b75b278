"""`headwater run` in two processes: one folder, one voice, and clear refusals."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from support.launching import launch

FILE = Path(__file__).with_name("run.toml")
MAIN = Path(__file__).with_name("main.py")
SMALL = ["--set", "prompts.per_step=2", "--set", "rollout.steps=3"]
HELD_OUT = ["--set", 'evaluation={every=2,prompts="tiny:eval",count=3,batch=2}']


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "weights.safetensors")


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, sharded):
    # A moving average unlike the weights: an evaluation in between must not leave it there.
    double = [
        "--set",
        "optimizer.ema=0.5",
        "--set",
        'backbone.dtype="float64"',
        "--set",
        'reward.preference.dtype="float64"',
    ]
    output = ["--set", "output.checkpoint_every=2", "--set", 'output.trackers=["jsonl"]']
    sets = [*SMALL, *HELD_OUT, *double, *output]
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    arguments = [MAIN, "run", FILE, *sets]
    done = launch(1, *arguments, "--set", "steps=6", "--out", straight)
    assert done.returncode == 0, done.stderr[-2000:]
    first = launch(2, *arguments, "--set", "steps=4", "--out", broken, sharded=sharded)
    assert first.returncode == 0, first.stderr[-2000:]
    second = launch(1, *arguments, "--set", "steps=6", "--out", broken, "--resume")
    assert second.returncode == 0, second.stderr[-2000:]
    one, two = weights(straight, 6), weights(broken, 6)
    assert one.keys() == two.keys()
    for name in one:
        assert float((one[name] - two[name]).abs().max()) < 1e-9
    for line in (broken / "metrics.jsonl", straight / "metrics.jsonl"):
        assert len(line.read_text().splitlines()) == 6 + 4  # steps and evaluations, once each


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["--set", "prompts.per_step=3"], "cannot be dealt to 2 processes"),
        (
            [
                *("--set", 'algorithm={use="flow-grpo",updates=2}'),
                *("--set", 'dynamics={use="dance-sde"}', "--set", 'estimator={use="exact"}'),
                *("--set", "prompts.group=2", "--set", "steps=3"),
            ],
            "multiple of updates * epochs = 2 (2 or 4)",
        ),
    ],
)
def test_what_does_not_divide_is_refused(tmp_path, sets, said):
    done = launch(2, MAIN, "run", FILE, *sets, "--out", tmp_path / "run")
    text = " ".join(done.stderr.split())
    assert said in text
    assert "exitcode : 2" in text
    assert not (tmp_path / "run").exists()
