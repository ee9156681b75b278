"""A run folder in every state it can be in."""

import json
import math
import shutil

import pytest
from click.testing import CliRunner

from headwater.cli import main
from headwater.errors import InputError
from headwater.run_folder import held
from headwater_report.facts import facts, titled
from headwater_report.reading import read_run


def copied(folder, target, *left_out):
    shutil.copytree(folder, target)
    for name in left_out:
        path = target / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return target


def refused(*arguments):
    """Exit code 2, no traceback. Returns: what was said."""
    done = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.output


def test_a_run_that_is_done_tells_all(trained):
    record = read_run(trained("plain"))
    assert facts(record).status.text == "done, 4 steps"
    assert list(record.steps) == [1, 2, 3, 4]
    assert list(record.evaluations) == [0, 2, 4]
    assert record.trained == ["brightness"]
    assert record.held_out == ["count"]
    assert record.prompts[0] == "q"
    assert record.resumed == []
    assert record.notes == []
    assert record.pair.step == 4
    assert len(record.pair.first.images) == 3


def test_a_resumed_run_tells_after_which_step(trained):
    record = read_run(trained("longer", "steps=2", resume_to=4))
    assert record.resumed == [2]
    assert list(record.steps) == [1, 2, 3, 4]
    assert facts(record).status.kind == "done"


def test_a_run_that_a_process_holds_is_going_on(trained, tmp_path):
    folder = copied(trained("plain"), tmp_path / "copy", "summary.json")
    with held(folder):
        status = facts(read_run(folder)).status
    assert (status.kind, status.text) == ("running", "going on, step 4 of 4")
    left = facts(read_run(folder)).status
    assert left.kind == "unfinished"
    assert left.detail.endswith("checkpoint at step 4.")


def test_looking_leaves_the_folder_free(trained, tmp_path):
    folder = copied(trained("plain"), tmp_path / "copy")
    read_run(folder)
    with held(folder):
        pass


def test_a_stopped_run_tells_why_and_where(written):
    summary = {"steps": 3, "stopped": "SIGTERM", "evaluated_at": 0}
    folder = written(rows=[{"step": i, "loss": 1.0} for i in (1, 2, 3)], summary=summary)
    assert facts(read_run(folder)).status.text == "stopped by SIGTERM at step 3 of 9"


def test_a_summary_of_an_earlier_stop_is_not_used(written):
    summary = {"steps": 2, "stopped": "SIGINT", "rewards": {}, "seconds": 5.0}
    folder = written(rows=[{"step": i, "seconds": 1.0} for i in (1, 2, 3)], summary=summary)
    record = read_run(folder)
    assert record.summary == {}
    assert "went on since" in record.notes[0]
    assert facts(record).cost["seconds"] == 3.0


def test_a_line_that_is_being_written_is_left_out(written):
    folder = written(rows=[{"step": 1, "loss": 2.0}], end='{"step": 2, "lo')
    with held(folder):
        record = read_run(folder)
    assert record.steps == {1: {"loss": 2.0}}
    assert record.notes == []


def test_a_line_that_nobody_is_writing_is_named(written):
    record = read_run(written(rows=[{"step": 1, "loss": 2.0}], end='{"step": 2, "lo'))
    assert record.steps == {1: {"loss": 2.0}}
    assert record.notes == ["The last line of metrics.jsonl is cut off; left out."]


def test_lines_that_are_no_metrics_are_counted(written):
    bad = 'null\n[1]\n{"step": "x"}\n{"step": -1}\n{"step": true}\n\xff\n{"step": 2, "a": "text", "b": 1}\n'
    record = read_run(written(rows=[{"step": 1, "loss": 2.0}], end=bad))
    assert record.steps == {1: {"loss": 2.0}, 2: {"b": 1.0}}
    assert record.notes == ["6 lines of metrics.jsonl cannot be read; left out."]


def test_null_and_nan_are_no_numbers(written):
    end = '{"step": 1, "a": null, "b": NaN, "c": Infinity, "d": true, "e": 1e200}\n'
    row = read_run(written(end=end)).steps[1]
    assert list(row) == ["a", "b", "c", "e"]
    assert all(map(math.isnan, row.values()))


def test_a_step_that_was_written_twice_counts_once(written):
    rows = [{"step": 2, "loss": 1.0}, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 4.0}]
    record = read_run(written(rows=rows))
    assert list(record.steps.items()) == [(1, {"loss": 3.0}), (2, {"loss": 4.0})]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": null}', '{"steps": "4"}'])
def test_a_summary_that_is_none_is_named(written, text):
    folder = written(rows=[{"step": 1, "loss": 1.0}])
    (folder / "summary.json").write_text(text)
    record = read_run(folder)
    assert record.summary == {}
    assert "summary.json cannot be read" in record.notes[0]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(trained, tmp_path):
    every = trained("kept", "output.keep_every=2")
    folder = copied(every, tmp_path / "copy", "summary.json")
    (folder / "checkpoints" / "step-000004" / "state.json").write_text("{}")
    record = read_run(folder)
    assert record.checkpoint == 2
    assert record.pair.step == 2
    assert any("step-000004 is damaged" in note for note in record.notes)


@pytest.mark.parametrize("missing", ["checkpoints", "samples", "metrics.jsonl", "tensorboard"])
def test_a_folder_without_one_of_its_parts_is_reported(trained, tmp_path, missing):
    folder = copied(trained("plain"), tmp_path / "copy", missing)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(folder), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert "</html>" in page.read_text()
    assert (read_run(folder).resumed is None) == (missing == "tensorboard")


def test_prompts_that_are_gone_are_told_of(trained, tmp_path):
    folder = copied(trained("plain"), tmp_path / "copy")
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace("eval.txt", "lost.txt"))
    record = read_run(folder)
    assert record.prompts == ()
    assert "lost.txt" in record.notes[0]


def test_no_evaluation_and_one_step(trained, tmp_path):
    folder = trained("bare", "steps=1", "evaluation={}")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(folder), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert "The run has no evaluation" in done.output


def test_what_is_no_run_is_refused_in_a_paragraph(tmp_path, trained):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    said = refused(tmp_path / "empty", tmp_path / "none", tmp_path / "file", trained("plain"))
    assert "3 problems" in said
    assert "it holds no run (no run.toml)" in said
    assert "no such folder" in said
    assert "it is a file" in said
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("text", [b"= 1", b"\xff\xfe", b"a = " + b"[" * 5000])
def test_a_run_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "run.toml").write_bytes(text)
    with pytest.raises(InputError):
        read_run(tmp_path)


def test_runs_of_one_name_are_told_apart_by_their_folders(written, tmp_path):
    one, two = written("one"), written("two")
    (tmp_path / "deep").mkdir()
    three = written("deep/two")
    labels = [record.label for record in titled([read_run(f) for f in (one, two, three)])]
    assert labels == ["one", str(two), str(three)]


def test_json_holds_the_numbers_of_the_summary(trained):
    folder = trained("plain")
    done = CliRunner().invoke(main, ["report", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    summary = json.loads((folder / "summary.json").read_text())
    for part in ("before", "after", "difference"):
        expected = summary["rewards"]["brightness"][part]
        assert run["rewards"]["brightness"][part] == {k: expected[k] for k in ("mean", "se")}
    assert run["held_out"]["count"]["n"] == 3
    assert run["cost"]["forwards"] == summary["forwards"]
    assert run["versions"] == summary["versions"]
    assert not (folder / "report.html").exists()
