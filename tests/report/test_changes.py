"""Before and after, from each of the places they can be read in."""

import math
import shutil

import pytest

from headwater_report.changes import Change, Changes, Value, changes, verdict
from headwater_report.differences import differing
from headwater_report.reading import read_run


def numbers(found):
    return {
        row.key: [getattr(row, p) for p in ("before", "after", "difference")] for row in found.rows
    }


def test_summary_and_checkpoint_tell_the_same(trained, tmp_path):
    folder = shutil.copytree(trained("plain"), tmp_path / "copy")
    whole = changes(read_run(folder))
    (folder / "summary.json").unlink()
    from_checkpoint = changes(read_run(folder))
    assert [row.key for row in whole.rows] == ["brightness", "count"]
    assert [row.held_out for row in whole.rows] == [False, True]
    assert numbers(whole) == numbers(from_checkpoint)  # both from the same float64 scores
    assert (whole.first, whole.last) == (from_checkpoint.first, from_checkpoint.last) == (0, 4)
    shutil.rmtree(folder / "checkpoints")
    from_metrics = changes(read_run(folder))
    for key, values in numbers(whole).items():
        found = numbers(from_metrics)[key]
        assert [v.mean for v in found] == pytest.approx([v.mean for v in values], abs=1e-12)
        assert [v.se for v in found[:2]] == pytest.approx([v.se for v in values[:2]], abs=1e-12)


def evaluation(step, a, se, **more):
    return {"step": step, "evaluation/a": a, "evaluation/a_se": se, **more}


def test_metrics_without_pairs_take_the_evaluations_as_independent(written):
    rows = [evaluation(0, 1.0, 0.3), evaluation(4, 2.0, 9.0), evaluation(8, 1.5, 0.4)]
    (row,) = changes(read_run(written(rows=rows))).rows
    assert (row.before, row.after) == (Value(1.0, 0.3), Value(1.5, 0.4))
    assert row.difference == Value(0.5, pytest.approx(0.5))  # 3, 4, 5
    assert not row.paired


def test_metrics_with_pairs_give_the_paired_error(written):
    paired = {"change/a": 0.5, "change/a_se": 0.01}
    rows = [evaluation(0, 1.0, 0.3), evaluation(8, 1.5, 0.4, **paired)]
    (row,) = changes(read_run(written(rows=rows))).rows
    assert row.difference == Value(0.5, 0.01)
    assert row.paired


def change(key, mean, se, *, held_out=False):
    nothing = Value(0.0, 0.0)
    return Change(key, held_out, nothing, nothing, Value(mean, se), 8, paired=True)


@pytest.mark.parametrize(
    ("mean", "se", "said"),
    [
        (0.30, 0.1, "reward a rose by 0.30 ± 0.10 (3.0 standard errors)"),
        (-0.30, 0.1, "reward a fell by 0.30 ± 0.10 (3.0 standard errors)"),
        (0.19, 0.1, "did not change clearly, +0.19 ± 0.10 (1.9 standard errors)"),
        (-0.1, 0.1, "did not change clearly, −0.10 ± 0.10"),
        (0.0, 0.0, "reward a did not change."),
        (0.5, 0.0, "did not change clearly, +0.5000."),  # one prompt: no error to judge by
        (math.nan, math.nan, "is not known (a score is not finite)"),
    ],
)
def test_the_verdict_says_what_the_numbers_say(written, mean, se, said):
    found = verdict(read_run(written()), Changes([change("a", mean, se)], 0, 4))
    assert said in found.replace("\N{NO-BREAK SPACE}", " ")


def test_a_trained_reward_up_and_a_held_out_one_down_is_called_hacking(written):
    record = read_run(written())
    rose, fell = change("a", 1.0, 0.1), change("b", -1.0, 0.1, held_out=True)
    assert "reward hacking" in verdict(record, Changes([rose, fell], 0, 4))
    little = change("b", -1.0, 0.9, held_out=True)
    assert "reward hacking" not in verdict(record, Changes([rose, little], 0, 4))


def test_errors_are_shown_to_two_digits():
    shown = {
        Value(1.23456, 0.0123): "1.235 ± 0.012",
        Value(-1.23456, 0.123): "−1.23 ± 0.12",
        Value(123.456, 45.6): "123 ± 46",
        Value(0.5, 0.0): "0.5000",
        Value(math.nan, 1.0): "–",
    }
    for value, text in shown.items():
        assert value.text.replace("\N{NO-BREAK SPACE}", " ") == text


def test_exactly_the_keys_that_differ_are_listed():
    one = {"steps": 4, "a": {"x": 1, "y": [1, 2]}, "same": {"z": "t"}, "empty": {}}
    two = {"steps": 5, "a": {"x": 1, "y": [2, 1]}, "same": {"z": "t"}, "b": {"w": True}}
    assert differing([one, two]) == {
        "steps": ["4", "5"],
        "a.y": ["[1, 2]", "[2, 1]"],
        "empty": ["{}", None],
        "b.w": [None, "true"],
    }
    assert differing([one, one, one]) == {}
