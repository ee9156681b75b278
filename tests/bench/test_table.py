"""The performance table: verdicts by hand, and the command's exit code."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
TABLE = BENCH / "all.py"


@pytest.fixture
def table(monkeypatch):
    """The module; what it imports beside it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module("all")
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("value", "higher", "verdict"),
    [
        (1.0, False, "same"),
        (1.24, False, "same"),
        (1.26, False, "WORSE"),
        (0.81, False, "same"),
        (0.79, False, "better"),
        (1.24, True, "same"),
        (1.26, True, "better"),
        (0.81, True, "same"),
        (0.79, True, "WORSE"),
    ],
)
def test_a_quarter_worse_is_allowed_in_the_direction_that_is_worse(table, value, higher, verdict):
    """A gain may fall to 1 / 1.25 = .8 of what it was, a cost may rise to 1.25 of it."""
    assert table.Row("x", value, 0.25, higher).verdict(1.0) == verdict
    assert table.Row("x", 3 * value, 0.25, higher).verdict(3.0) == verdict


def test_new_rows_pass_and_rows_that_are_gone_are_named(table):
    rows = [table.Row("a", 1.0, 0.1), table.Row("b", 1.0, 0.1)]
    saved = {
        "a": {"value": 1.0, "part": "modes"},
        "gone": {"value": 2.0, "part": "modes"},
        "not asked for": {"value": 2.0, "part": "jagg"},
    }
    found = table.compared(rows, saved, ["modes"])
    verdicts = {row["name"]: row["verdict"] for row in found}
    assert verdicts == {"a": "same", "b": "new", "gone": "MISSING"}
    assert "MISSING" in table.printed(found) and "not asked for" not in table.printed(found)


def test_saving_some_parts_keeps_the_others(table):
    rest = {"old": {"value": 2.0, "part": "jagg"}}
    kept = table.to_save([table.Row("a", 1.0, 0.1)], {"a": "modes"}, rest)["rows"]
    assert {name: row["part"] for name, row in kept.items()} == {"a": "modes", "old": "jagg"}


def test_a_median_and_its_quartiles(table):
    row = table.Row.of("x", [5.0, 1.0, 2.0, 4.0, 3.0, 6.0, 7.0], 0.1)
    assert (row.low, row.value, row.high) == (2.0, 4.0, 6.0)


def test_the_saved_table_is_whole(table):
    """Every part has its rows, so that a comparison says something of all."""
    rows = json.loads(table.SAVED.read_text())["rows"]
    assert {row["part"] for row in rows.values()} == set(table.PARTS)
    assert all(row["value"] > 0 for row in rows.values())
    timed = {name for name, row in rows.items() if row["part"] == "estimators"}
    assert timed == {f"seconds: {name} over bptt" for name in table.ESTIMATORS}


@pytest.mark.long
def test_the_exit_code_says_whether_a_row_is_worse(tmp_path):
    """Memory repeats exactly: against itself all is the same, against half of it worse."""

    def measured(*args):
        command = [sys.executable, str(TABLE), "--only", "modes", "--json", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    path = tmp_path / "saved.json"
    first = measured("--save", path)
    assert first.returncode in (0, 1), first.stderr
    again = measured("--against", path)
    assert again.returncode == 0, again.stdout
    saved = json.loads(path.read_text())
    name = "memory: joint, K = 8 over K = 1"
    saved["rows"][name]["value"] /= 2
    path.write_text(json.dumps(saved))
    worse = measured("--against", path)
    assert worse.returncode == 1
    verdicts = {row["name"]: row["verdict"] for row in json.loads(worse.stdout)}
    assert {n for n, verdict in verdicts.items() if verdict == "WORSE"} == {name}
    assert measured("--against", tmp_path / "none.json").returncode == 2
