"""`headwater eval` where it is asked for what cannot be: one paragraph, and nothing is written."""

import json
import resource

import pytest


def evaluated(headwater, run, out, *arguments):
    result = headwater("eval", run, "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads((out / "eval.json").read_text())


WRONG = {
    "no count": (("--count", 0), "--count: expected a whole number of at least 1, got 0"),
    "negative": (("--count", -3), "--count: expected a whole number of at least 1, got -3"),
    "too many": (("--count", 6), "--count: expected at most the 5 prompts of"),
    "no seeds": (("--seeds", 0), "--seeds: expected a whole number of at least 1, got 0"),
    "one sample": (("--count", 1, "--seeds", 1), "one sample has no standard error"),
    "no checkpoint": (("--checkpoint", 9), "no checkpoint 'step-000009'; it holds step-000001"),
    "odd checkpoint": (("--checkpoint", "x"), "expected last, best, base or a step, got 'x'"),
    "no reward": (("--reward", "toy-cuont"), "no reward named 'toy-cuont'"),
    "twice": (("--reward", "a=toy-count", "--reward", "a=toy-nan"), "a reward 'a' already"),
    "no name": (("--reward", "a="), "expected NAME or KEY=NAME"),
    "odd key": (("--reward", "a b=toy-count"), "expected letters, digits, _ and - in a name"),
    "option": (("--set", "reward.count.x=1"), "[reward.count] x: unknown key"),
    "weight": (("--set", "reward.count.weight=2.0"), "[reward.count] weight: unknown key"),
    "unread": (("--set", "optimizer.lr=1.0"), "eval reads only reward.KEY, backbone"),
    "steps": (("--set", "rollout.steps=3"), "use --steps"),
    "weights": (("--weights", "both"), "--weights: expected ema or live, got 'both'"),
    "prompts": (("--prompts", "none.txt"), "no such prompt list: none.txt"),
    "config": (("--config", "none.toml"), "no such file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_paragraph_and_writes_nothing(toy_run, headwater, tmp_path, name):
    arguments, expected = WRONG[name]
    result = headwater("eval", toy_run, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2, result.output
    assert expected in result.output
    assert result.output.startswith("Error: ")
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_a_wrong_folder_is_one_paragraph(toy_run, headwater, tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        result = headwater("eval", folder)
        assert result.exit_code == 2
        assert "it holds no run (no run.toml)" in result.output
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    result = headwater("eval", toy_run, "--out", tmp_path / "full")
    assert result.exit_code == 2
    assert "it is not an empty folder; nothing was written" in result.output
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_is_one_paragraph(toy_run, headwater, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        result = headwater("eval", toy_run, "--out", out)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("Error: ")
        assert "Traceback" not in result.output
    assert (tmp_path / "file").read_text() == "mine"


def test_weights_that_are_missing_leave_no_folder(toy_run, headwater, tmp_path):
    asked = ("--reward", "clip=clipscore", "--set", f"reward.clip.model={tmp_path / 'none'}")
    result = headwater("eval", toy_run, "--out", tmp_path / "out", *asked)
    assert result.exit_code == 2
    assert "[reward.clip]: model: " in result.output
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_paragraph(toy_run, headwater, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, before[1]))  # a picture is larger
    try:
        result = headwater("eval", toy_run, "--out", tmp_path / "out", "--count", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.exit_code == 1, result.output
    assert "the evaluation cannot be written: " in result.output
    assert "Traceback" not in result.output


def test_a_run_without_an_average_says_so(toy_file, headwater, tmp_path):
    from headwater.composition import compose
    from headwater.loop import train

    train(compose(toy_file, ["steps=1", "optimizer.ema=0.0"]), tmp_path / "run")
    asked = ("--count", 2, "--seeds", 1)
    result = headwater("eval", tmp_path / "run", "--weights", "ema")
    assert result.exit_code == 2
    assert "the run kept no moving average" in result.output
    usual = evaluated(headwater, tmp_path / "run", tmp_path / "out", *asked)
    assert usual["weights"] == "live"


def test_folders_are_numbered(toy_run, headwater):
    few = ("--count", 2, "--seeds", 1, "--json")
    folders = [json.loads(headwater("eval", toy_run, *few).stdout)["folder"] for _ in range(2)]
    assert folders == [str(toy_run / "eval-001"), str(toy_run / "eval-002")]
