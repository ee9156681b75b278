"""A run that hacks its reward: colours are saturated until the shapes are lost."""

import json
import shutil

import pytest

from headwater.composition import compose
from headwater.loop import train
from headwater.progress import Quiet


class Told(Quiet):
    """Keeps what it is told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def evaluations(folder):
    """Step: metrics of every evaluation."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if "evaluation/preference" in row}


def test_hacking_stops_the_run_with_exit_code_3_and_the_best_held_out_checkpoint(hacked):
    result, folder = hacked
    assert result.exit_code == 3, result.output
    found, summary = evaluations(folder), json.loads((folder / "summary.json").read_text())
    assert 2 < summary["steps"] < 20
    assert summary["stopped"] == "reward hacking"
    (warning,) = summary["warnings"]
    assert "the held-out reward 'preference' fell" in warning
    assert warning in result.output.replace("\n", " ")
    # the rule, once more by hand
    steps = sorted(found)[-3:]
    total = [found[s]["evaluation/total"] for s in steps]
    judged = [found[s]["evaluation/preference"] for s in steps]
    assert total[0] < total[1] < total[2]
    assert judged[0] > judged[1] > judged[2]
    assert [row["hacking/warning"] for _, row in sorted(found.items())][-1] == 1
    assert sum(row["hacking/warning"] for row in found.values()) == 1
    # checkpoints: the best by the held-out reward, and the last
    after = {step: row["evaluation/preference"] for step, row in found.items() if step}
    best = max(after, key=after.get)
    kept = {path.name for path in (folder / "checkpoints").iterdir()}
    assert kept == {f"step-{best:06d}", f"step-{summary['steps']:06d}"}
    assert best < summary["steps"]


def test_a_warning_is_said_once_and_the_run_goes_on(hacked_file, tmp_path):
    shown = Told()
    sets = ["evaluation.on_hacking=warn", "steps=6", "evaluation.patience=1"]
    summary = train(compose(hacked_file, sets), tmp_path / "out", shown)
    assert (summary.steps, summary.stopped) == (6, "")
    assert len(summary.warnings) == 1
    assert len(shown.notes) == 1
    assert shown.notes[0].startswith(f"WARNING: {summary.warnings[0]}. The best checkpoint by")
    streaks = [row["hacking/streak"] for _, row in sorted(evaluations(tmp_path / "out").items())]
    assert streaks[-1] > 1


def test_a_warning_with_the_last_step_ends_with_exit_code_3_too(hacked_file, headwater, tmp_path):
    sets = [f"--set={text}" for text in ("steps=4", "evaluation.patience=1", "evaluation.every=4")]
    result = headwater("run", hacked_file, "--out", tmp_path / "out", *sets)
    assert result.exit_code == 3, result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["steps"], summary["stopped"]) == (4, "reward hacking")
    assert (tmp_path / "out" / "checkpoints" / "step-000004").is_dir()


def test_a_stopped_run_goes_on_when_asked_and_keeps_its_warning(
    hacked, hacked_file, headwater, disk
):
    folder = disk / "goes-on"
    shutil.copytree(hacked[1], folder)
    done = json.loads((folder / "summary.json").read_text())["steps"]
    sets = [f"--set=steps={done + 2}"]
    result = headwater("run", hacked_file, "--out", folder, "--resume", *sets)
    assert result.exit_code == 0, result.output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["stopped"]) == (done + 2, "")
    assert len(summary["warnings"]) == 1


def test_patience_without_a_held_out_best_is_one_paragraph(hacked_file, headwater):
    result = headwater("check", hacked_file, "--set", "evaluation.keep_best=saturation")
    assert result.exit_code == 2
    assert "patience: it needs keep_best to be a held-out reward" in result.output
    assert "got 'saturation', held out: preference" in result.output


@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_batch_of_an_evaluation_changes_nothing(toy_file, tmp_path, size):
    whole = train(compose(toy_file, ["evaluation.batch=64"]), tmp_path / "whole")
    cut = train(compose(toy_file, [f"evaluation.batch={size}"]), tmp_path / "cut")
    for key in ("reward", "held_out"):
        one, other = (json.dumps(getattr(s, key), sort_keys=True) for s in (whole, cut))
        assert numbers(json.loads(one)) == pytest.approx(numbers(json.loads(other)), abs=1e-12)


@pytest.mark.parametrize("size", [3, 7])
def test_the_batch_of_an_evaluation_changes_nothing_on_the_tiny_model(hacked_file, size):
    from headwater.evaluation import evaluate, evaluation_draws
    from headwater.stage import open_stage

    double = ["backbone.dtype=float64", "evaluation.reward.preference.dtype=float64"]
    run = compose(hacked_file, ["evaluation.count=7", *double])
    stage, draws = open_stage(run, "cpu"), evaluation_draws(run)
    whole, cut = evaluate(stage, draws, 16), evaluate(stage, draws, size)
    for key, values in whole.scores.items():
        assert cut.scores[key] == pytest.approx(values, abs=1e-9)


def numbers(table):
    """Every number of nested tables, in order."""
    if isinstance(table, dict):
        return [n for key in sorted(table) for n in numbers(table[key])]
    return [table]
