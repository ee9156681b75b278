"""The page of a run: its numbers are those of metrics.jsonl, also after a resumed run."""

import json
import os
import re
import signal
import warnings

import pytest

from headwater.composition import compose
from headwater.loop import train
from headwater.progress import Quiet
from headwater.testing.runs import write_run_file
from headwater_markdown_log.observer import plain


class Stopping(Quiet):
    def after_step(self, step, metrics, skipped):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def run_file(tmp_path, headwater_toys):
    tables = {
        "steps": 4,
        "evaluation": {"every": 2, "count": 3},
        "output": {"trackers": ["jsonl", "markdown-log"]},
        "observer": {"markdown-log": {"title": "One | two"}},
    }
    return write_run_file(tmp_path / "file", tables)


def expected_rows(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "evaluation/brightness" in row:
            yield row["step"], row["evaluation/brightness"], row.get("change/brightness")


def test_a_resumed_run_has_one_page_with_every_evaluation_once(run_file, tmp_path):
    out = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an observer's failure is a warning
        train(compose(run_file), out, Stopping())
    assert "Stopped after 3 steps." in (out / "RUN.md").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(compose(run_file), out, Quiet(), resume=True)
    page = (out / "RUN.md").read_text()
    assert page.startswith("# One \\| two\n")
    assert "Done after 4 steps." in page
    assert "estimator `toy-bptt`" in page
    rows = re.findall(r"^\| (\d+) \| (\S+) ± \S+(?: \((\S+) ± \S+\))? \| (.*) \|$", page, re.M)
    expected = list(expected_rows(out))
    assert [int(row[0]) for row in rows] == [step for step, _, _ in expected] == [0, 2, 4]
    for (_, value, change, image), (step, mean, paired) in zip(rows, expected, strict=True):
        assert float(value) == pytest.approx(mean, abs=5e-5)
        assert (change == "") == (paired is None)
        assert paired is None or float(change) == pytest.approx(paired, abs=5e-5)
        (path,) = re.findall(r"\((.*)\)", image)
        assert (out / path).is_file() and f"step-{step:06d}" in path


def test_a_failed_run_says_why(run_file, tmp_path):
    class Broken(Quiet):
        def after_step(self, step, metrics, skipped):
            raise RuntimeError("a | b\nc")

    with pytest.raises(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(compose(run_file), tmp_path / "run", Broken())
    page = (tmp_path / "run/RUN.md").read_text()
    assert "Failed after 1 steps. RuntimeError: a \\| b c" in page


def test_text_is_one_line_without_borders():
    assert plain(" a\n| b") == "a \\| b"
