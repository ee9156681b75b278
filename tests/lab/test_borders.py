"""The command: its output, its refusals, what it holds in memory."""

import gc
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from headwater.cli import main
from headwater.errors import InputError
from headwater.memory import peak_memory
from headwater_lab.compare import Options, compare
from headwater_lab.measurement import Probe
from headwater_lab.specs import read_specs


def refused(*arguments):
    """Exit code 2, one paragraph, no traceback. Returns: what was said."""
    done = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.output


def test_the_command_prints_json_and_streams_to_stderr(run_file, tmp_path):
    picture = tmp_path / "compare.png"
    command = ["compare", str(run_file()), "--estimators", "bptt,leapalign", "--json"]
    done = CliRunner().invoke(
        main, [*command, "--rollouts", "2", "--draws", "3", "--plot", str(picture)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["reference"]["name"] == "bptt"
    assert [row["name"] for row in found["estimators"]] == ["bptt", "leapalign"]
    assert found["estimators"][1]["settings"]["coupling"] == 0.3
    for key in ("cosine", "norm_ratio", "bias", "variance", "seconds", "forwards", "backwards"):
        assert set(found["estimators"][1][key]) >= {"mean", "se", "n"}
    assert set(found["estimators"][1]["diagnostics"]) >= {"d_0", "d_j"}
    assert found["estimators"][1]["peak_memory_bytes"] > 0
    assert len(done.stderr.splitlines()) == 4, "one line an estimator and rollout"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_list_the_run_files_own_estimator_is_measured(run_file):
    file = run_file({'use = "bptt"': 'use = "draft-k"\nk = 2'})
    done = CliRunner().invoke(main, ["compare", str(file), "--rollouts", "1"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert any(line.startswith("draft-k ") for line in lines)
    assert not any("±" in line for line in lines[3:]), "one rollout has no standard error"


def test_a_table_file_says_the_same_as_a_list(run_file, tmp_path):
    file = run_file()
    (tmp_path / "list.toml").write_text(
        '[estimator.half]\nuse = "leapalign"\ncoupling = 0.5\nrange = [0.0, 0.8]\n'
        '[estimator.free]\nuse = "surrogate"\n[estimator.free.active]\ncount = 2\n'
    )
    listed = "leapalign{coupling=0.5,range=[0.0,0.8]},surrogate{active={count=2}}"
    both = [
        compare(file, text, options=Options(1, 2)).summary["estimators"]
        for text in (str(tmp_path / "list.toml"), listed)
    ]
    assert [row["name"] for row in both[0]] == ["half", "free"]
    for left, right in zip(*both, strict=True):
        assert left["cosine"] == right["cosine"]
        assert left["settings"] == right["settings"]
    assert both[0][1]["settings"]["active"]["count"] == 2


def test_the_seed_and_overrides_change_what_is_measured(run_file):
    file = run_file()

    def norm(*sets, seed=None):
        options = Options(1, 1, seed=seed)
        return compare(file, "bptt", sets, options).summary["reference"]["norm"]["mean"]

    assert norm() == norm()
    assert norm(seed=4) != norm()
    assert norm(seed=4) == norm("seed=4")
    assert norm("rollout.steps=3") != norm()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("leapaling", "leapaling: [estimator] use: no estimator named 'leapaling'; did you mean"),
        ("leapalign{coupling=3}", "coupling: expected a number from 0 to 1, got 3"),
        ("leapalign{coupling=0.1,copling=1}", "copling: unknown key; did you mean 'coupling'?"),
        ("leapalign{coupling}", "not valid TOML"),
        ("leapalign{coupling=0.1", "expected NAME or NAME{KEY=VALUE, ...}"),
        ("bptt,bptt", "bptt: listed twice"),
        ("leapalign{use='bptt'}", "leave 'use' out"),
        ("leapalign{draws=3}", "draws: 3 does not divide [prompts] per_step = 4"),
        ("exact", "'exact' needs a per-step upstream, algorithm 'direct' gives an endpoint"),
        (" , ", "expected at least one estimator"),
        ("", "expected at least one estimator"),
        ("missing.toml", "missing.toml: 1 problem\n  no such file"),
        ("a b", "expected NAME or NAME{KEY=VALUE, ...}, got 'a b'"),
        ("leapalign{'a b'=1}", "expected letters, digits, _ and - in a key, got '.a b'"),
    ],
)
def test_a_wrong_list_is_refused_in_one_paragraph(run_file, text, said):
    assert said in refused(run_file(), "--estimators", text)


def test_all_problems_of_all_estimators_come_at_once(run_file):
    said = refused(run_file(), "--estimators", "leapalign{coupling=3,tau=-1},draft-k{k=0},bptt")
    assert "3 problems" in said
    for part in ("coupling", "tau", "draft-k{k=0}: [estimator] k"):
        assert part in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "x: unknown key"),
        ("[estimator]\nhalf = 3", "[estimator] half: expected a table, got 3"),
        ("[estimator.half]\ncoupling = 0.1", "[estimator.half] use: expected the name"),
        ("[estimator.half", "not valid TOML"),
        ("", "expected at least one table [estimator.LABEL]"),
    ],
)
def test_a_wrong_table_file_is_refused(run_file, tmp_path, text, said):
    (tmp_path / "list.toml").write_text(text)
    assert said in refused(run_file(), "--estimators", tmp_path / "list.toml")


def test_a_setting_that_nothing_would_read_is_refused(run_file):
    said = refused(run_file(), "--estimators", "leapalign", "--set", "estimator.coupling=0.2")
    assert "give the setting in --estimators" in said


def test_the_run_files_own_errors_are_told_once(run_file):
    said = refused(run_file({"steps = 5": "steps = 0"}), "--estimators", "bptt,leapalign")
    assert said.count("[rollout] steps") == 1
    assert "no such file" in refused("nowhere.toml", "--estimators", "bptt")


def test_a_picture_that_cannot_be_written_is_told_beforehand(run_file, tmp_path, monkeypatch):
    file = run_file()
    assert "expected a .png, .svg or .pdf" in refused(file, "--plot", tmp_path / "x.doc")
    assert "no such folder" in refused(file, "--plot", tmp_path / "no" / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    said = refused(file, "--plot", tmp_path / "x.png")
    assert "pip install 'headwater-lab[plots]'" in said


def test_a_picture_that_fails_after_all_loses_no_numbers(run_file, tmp_path):
    (tmp_path / "taken.png").mkdir()
    command = ["compare", str(run_file()), "--estimators", "draft-k", "--rollouts", "1", "--json"]
    done = CliRunner().invoke(main, [*command, "--plot", str(tmp_path / "taken.png")])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["estimators"][0]["name"] == "draft-k"
    assert "the picture cannot be written" in done.stderr
    assert "Traceback" not in done.output


def test_a_reference_without_any_gradient_says_so(run_file):
    file = run_file({'margin = "none"': "margin = -5.0"})
    with pytest.raises(InputError, match="zero on every rollout"):
        compare(file, "leapalign", options=Options(2, 2))


def test_memory_does_not_grow_with_draws_rollouts_or_estimators(run_file, monkeypatch):
    """Everything is held to within a third of one gradient (18,816 bytes of 48 * 49 numbers)."""
    file = run_file({"per_step = 4": "per_step = 2"})
    monkeypatch.setattr(Probe, "measure_memory", lambda self, cached: None)  # profilers do not nest

    def peak(estimators, rollouts, draws):
        work = lambda: compare(file, estimators, options=Options(rollouts, draws))  # noqa: E731
        gc.collect()  # what other tests left is not freed, and told as free, in between
        return peak_memory(work)[1]

    peak("leapalign", 1, 2)
    few = peak("leapalign", 1, 2)
    many = peak("leapalign,draft-k{k=3},flowbp-sparse{k=2},leapalign{coupling=0.1}", 3, 6)
    assert many - few < 18816 / 3


def test_help_imports_no_torch():
    code = (
        "import sys; from click.testing import CliRunner; from headwater.cli import main; "
        "r = CliRunner().invoke(main, ['compare', '--help']); assert r.exit_code == 0, r.output; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_list_is_cut_at_outer_commas_only():
    found = read_specs("a{x=[1,2],y={z='p,q}'}}, b ,c{}")
    assert [spec.label for spec in found] == ["a{x=[1,2],y={z='p,q}'}}", "b", "c{}"]
    assert found[0].table == {"use": "a", "x": [1, 2], "y": {"z": "p,q}"}}
    assert found[2].table == {"use": "c"}
