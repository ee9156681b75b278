"""Odd input and odd ends: each is told in a sentence, and nothing whole is lost."""

import json
import math

import pytest
from click.testing import CliRunner

from headwater import checkpoints
from headwater.cli import main
from headwater.composition import compose
from headwater.errors import GuardError, InputError
from headwater.loop import train
from headwater.sampling import sample


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("prompts.file=''", "expected a prompt list"),
        ("optimizer.lr=1" + "0" * 400, "expected a number, got"),
        ("optimizer.lr=inf", "above 0, got inf"),
        ("optimizer.weight_decay=inf", "at least 0, got inf"),
        ("optimizer.betas=[1.5,0.9]", "to below 1, got 1.5"),
        ("optimizer.ema=1", "to below 1, got 1"),
        ("seed=99999999999999999999999999", "expected a number from 0"),
        ("name='../evil'", "expected at most 100 letters"),
        ("name='/evil'", "expected at most 100 letters"),
        ("name='" + "a" * 400 + "'", "expected at most 100 letters"),
        ("reward.brightness.weight=0", "finite number other than 0"),
        ("reward.brightness.weight=nan", "finite number other than 0"),
        ("reward.brightness_se.use=toy-brightness", "the name is that of a metric"),
        ("prompts.per_step=1000000000", "from 1 to 100000"),
        ("rollout.steps=100000000", "from 1 to 10000"),
        ("output.trackers=['jsonl','jsonl']", "listed twice"),
        ("steps=2\nseed=3", "expected one KEY=VALUE"),
    ],
)
def test_a_value_that_cannot_work_is_told_by_check(run_file, override, said):
    with pytest.raises(InputError) as caught:
        compose(run_file(), [override])
    assert said in str(caught.value)


def test_a_deeply_nested_file_is_no_traceback(run_file, tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(InputError, match="nested too deeply"):
        compose(path)


def test_a_byte_order_mark_is_no_letter(run_file, tmp_path):
    path = run_file()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbfpp\n")
    assert compose(path).prompts[0].text == "pp"


def test_a_reward_without_its_hook_is_found_at_composition(run_file, package):
    source = (
        "import attrs\n@attrs.frozen(eq=False)\nclass Mute:\n"
        "    differentiable = True\n    needs_text = False\n    margin = None\n"
    )
    package("mute", {"reward mute": "Mute"}, source)
    with pytest.raises(InputError, match="brings no hook 'score'"):
        compose(run_file({"toy-brightness": "mute"}))


def test_the_resolved_file_of_a_run_without_held_out_rewards_is_valid(run_file, tmp_path):
    path = run_file({'[evaluation.reward.count]\nuse = "toy-count"\n': ""})
    train(compose(path), tmp_path / "out")
    assert compose(tmp_path / "out" / "run.toml").held_out == {}


def test_a_checkpoint_that_is_there_is_never_removed_to_be_written_again(tmp_path, monkeypatch):
    import torch

    first = checkpoints.save(tmp_path, 3, {"w": torch.ones(2)}, {}, {})
    before = (first / "weights.safetensors").stat().st_ino
    again = checkpoints.save(tmp_path, 3, {"w": torch.ones(2)}, {}, {})
    assert again == first
    assert (again / "weights.safetensors").stat().st_ino == before


def test_an_early_stop_compares_nothing_that_was_not_measured(run_file, tmp_path):
    import os
    import signal

    from headwater.progress import Quiet

    class StopAfterOne(Quiet):
        def after_step(self, step, metrics, skipped):
            if step == 1:
                os.kill(os.getpid(), signal.SIGINT)

    path = run_file({"every = 2": "every = 3"})
    summary = train(compose(path), tmp_path / "out", StopAfterOne())
    assert summary.steps == 1
    assert summary.evaluated_at == 0
    assert summary.reward == {}
    assert not (tmp_path / "out" / "samples" / "before_after.png").exists()


def test_a_nan_reward_keeps_the_good_updates_before_it(run_file, tmp_path):
    (tmp_path / "late.txt").write_text("p\npp\nppp\npppp\nnan\n")
    sets = ["prompts.file=late.txt", "reward.brightness.use=toy-nan", "evaluation.prompts=''"]
    out = tmp_path / "out"
    with pytest.raises(GuardError):
        train(compose(run_file(), [*sets, "steps=30", "output.checkpoint_every=1000"]), out)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").open()]
    if steps:
        assert checkpoints.newest(out).name == f"step-{max(steps):06d}"


def test_weights_that_give_nan_end_with_a_guard(run_file, tmp_path):
    (tmp_path / "eval.txt").write_text("q\nnan here\n")
    path = run_file({"toy-brightness": "toy-nan"})
    with pytest.raises(GuardError, match="evaluation: reward 'brightness' is nan for 1 of 2"):
        train(compose(path), tmp_path / "out")


def test_json_has_no_nan():
    from headwater.statistics import without_nan

    found = without_nan({"a": math.nan, "b": [1.0, math.inf], "c": {"d": -math.inf}, "e": "x"})
    assert found == {"a": None, "b": [1.0, None], "c": {"d": None}, "e": "x"}


def test_pictures_are_not_overwritten(run_file, tmp_path):
    out = tmp_path / "out"
    train(compose(run_file()), out)
    first = sample(out, ["p"], 1, 0, "last", None)
    second = sample(out, ["ppp"], 1, 0, "last", None)
    assert first != second
    for bad, said in (("noext", "expected a .png"), ("x.xyz", "expected a .png")):
        with pytest.raises(InputError, match=said):
            sample(out, ["p"], 1, 0, "last", tmp_path / bad)
    with pytest.raises(InputError, match="it is there already"):
        sample(out, ["p"], 1, 0, "last", first)
    with pytest.raises(InputError, match="expected last, best, base or a step"):
        sample(out, ["p"], 1, 0, "../..", None)


def test_an_interrupt_outside_a_run_exits_with_130(monkeypatch, run_file):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("headwater.composition.compose", interrupted)
    assert CliRunner().invoke(main, ["check", str(run_file())]).exit_code == 130


def test_a_start_that_fails_leaves_its_folder_free(run_file, tmp_path, package):
    source = """
import attrs
from typing import ClassVar
from headwater import hookimpl
from headwater.errors import InputError

@attrs.frozen(eq=False)
class Absent:
    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float] = 1.0

    def load(self, context):
        raise InputError("absent", ["its weights are not there"])

    @hookimpl
    def score(self, images):
        return images.mean(dim=(1, 2, 3))
"""
    package("absent-reward", {"reward absent": "Absent"}, source)
    path, out = run_file({'use = "toy-brightness"': 'use = "absent"'}), tmp_path / "out"
    for _ in range(2):  # the second start is not told of a run that never was
        with pytest.raises(InputError, match="weights are not there"):
            train(compose(path), out)
        assert not out.exists()
