"""Signals: what was done is kept, and said."""

import os
import signal
import sys

import pytest
from resume_runs import SCORED, Told, assert_same_end, child, last, lines, parted, resumed, seeded

from headwater import checkpoints
from headwater.composition import compose
from headwater.loop import train


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_signal_during_an_evaluation_ends_it_and_it_is_made_up_for(
    toy_file, tmp_path, package, number, call
):
    """Five evaluations, each of three batches: the 1st and 2nd call are in that of step 0."""
    sets = ["evaluation.reward.count.use=judge", "evaluation.batch=2"]
    parted(package, SCORED.format(call=0, what="pass"), "reward", "judge")
    seeded()
    train(compose(toy_file, sets), tmp_path / "whole")
    del sys.modules["their_judge"]
    what = f"os.kill(os.getpid(), {int(number)})"
    parted(package, SCORED.format(call=call, what=what), "reward", "judge")
    seeded()
    first = train(compose(toy_file, sets), tmp_path / "parts", Told())
    assert first.stopped == number.name
    assert first.steps == (0 if call < 4 else 3)
    assert last(tmp_path / "parts").name == f"step-{first.steps:06d}"
    assert all(row["step"] < first.steps or "loss" in row for row in lines(tmp_path / "parts"))
    found, _ = resumed(toy_file, tmp_path / "parts", *sets)
    assert (found.steps, found.stopped) == (12, "")
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_signal_during_a_checkpoint_lets_it_be_finished(toy_file, tmp_path, whole, monkeypatch):
    real = checkpoints.sync
    calls = []

    def sync_and_ask(path):
        calls.append(path)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        real(path)

    monkeypatch.setattr(checkpoints, "sync", sync_and_ask)
    seeded()
    first = train(compose(toy_file, []), tmp_path / "out", Told())
    monkeypatch.undo()
    assert (first.steps, first.stopped) == (2, "SIGTERM")
    assert not checkpoints.damage(last(tmp_path / "out"))
    resumed(toy_file, tmp_path / "out")
    assert_same_end(whole(), tmp_path / "out")


def test_a_second_signal_stops_at_once_and_loses_no_checkpoint(toy_file, tmp_path, whole):
    class Twice(Told):
        def after_step(self, step, metrics, skipped):
            if step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    seeded()
    with pytest.raises(KeyboardInterrupt):
        train(compose(toy_file, []), tmp_path / "out", Twice())
    assert last(tmp_path / "out").name == "step-000004"
    resumed(toy_file, tmp_path / "out")
    assert_same_end(whole(), tmp_path / "out")


def test_a_signal_after_the_last_step_is_a_run_that_is_done(toy_file, tmp_path, whole):
    class Late(Told):
        def after_evaluation(self, step, metrics):
            if step == 12:
                os.kill(os.getpid(), signal.SIGTERM)

    seeded()
    found = train(compose(toy_file, []), tmp_path / "out", Late())
    assert (found.steps, found.stopped) == (12, "")
    assert_same_end(whole(), tmp_path / "out")


def test_the_command_exits_with_130_and_says_how_to_go_on(toy_file, toys, tmp_path):
    out = tmp_path / "out"
    code = "import sys; from headwater.cli import main; main(sys.argv[1:])"
    sets = ["--set", "steps=100000", "--set", "output.checkpoint_every=100000"]
    process = child(toys, code, "run", toy_file, "--out", out, *sets)
    while not (out / "metrics.jsonl").exists() or "loss" not in (out / "metrics.jsonl").read_text():
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGTERM)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped by SIGTERM after step" in text
    assert f"--out {out} --resume goes on" in text
    assert not checkpoints.damage(last(out))
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_signal_while_weights_load_stops_at_once(toy_file, toys, tmp_path):
    code = """
import os, signal, sys
from headwater import loop
real = loop.open_stage
def slow(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*given)
loop.open_stage = slow
from headwater.cli import main
main(sys.argv[1:])
"""
    process = child(toys, code, "run", toy_file, "--out", tmp_path / "out")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
