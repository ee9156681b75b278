"""A name, a kind or a place that will not do is refused, and nothing is lost."""

import re

import pytest
from click.testing import CliRunner

from headwater import scaffolding
from headwater.cli import main
from headwater.errors import InputError
from headwater.installed import KINDS


def invoke(*arguments):
    return CliRunner().invoke(main, ["new-plugin", *map(str, arguments)])


BAD_NAMES = [
    "Every Other",
    "every_other",
    "-every",
    "every-",
    "every--other",
    "2nd",
    "café",
    "a/b",
    "../up",
    "a\nb",
    "a\n",
    "a.b",
    "",
    "x" * (scaffolding.LONGEST + 1),
    "headwater-mine",
    "headwater",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_in_a_sentence_and_nothing_is_written(name, tmp_path):
    result = invoke("--kind", "estimator", "--out", tmp_path / "made", "--", name)
    assert result.exit_code == 2
    assert "NAME: " in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_offered_instead_is_one_that_will_do(name):
    (problem,) = scaffolding.name_problems(name)
    for better in re.findall(r"'([^']*)' would do", problem):
        assert scaffolding.name_problems(better) == []


def test_a_better_name_is_offered():
    assert scaffolding.name_problems("Every Other!")[0].endswith("; 'every-other' would do")


def test_an_unknown_kind_is_refused_with_the_nearest_one(tmp_path):
    result = invoke("mine", "--kind", "estimater", "--out", tmp_path / "made")
    assert result.exit_code == 2
    assert "did you mean 'estimator'?" in result.output
    assert not list(tmp_path.iterdir())


def test_all_problems_are_told_at_once(tmp_path):
    (tmp_path / "made").mkdir()
    result = invoke("Mine!", "--kind", "teapot", "--out", tmp_path / "made")
    assert result.exit_code == 2
    assert all(word in result.output for word in ("NAME: ", "--kind: ", "--out: "))


@pytest.mark.parametrize("what", ["full folder", "empty folder", "file", "link", "dangling link"])
def test_what_is_there_already_is_left_as_it_is(what, tmp_path):
    place = tmp_path / "made"
    if what == "file":
        place.write_text("mine")
    elif what.endswith("folder"):
        place.mkdir()
        if what == "full folder":
            (place / "README.md").write_text("mine")
    else:
        target = tmp_path / "elsewhere"
        if what == "link":
            target.mkdir()
        place.symlink_to(target)
    before = sorted((p, p.is_symlink(), p.is_dir()) for p in tmp_path.rglob("*"))
    result = invoke("mine", "--kind", "reward", "--out", place)
    assert result.exit_code == 2
    assert f"{place} exists already" in result.output
    assert sorted((p, p.is_symlink(), p.is_dir()) for p in tmp_path.rglob("*")) == before
    if what == "full folder":
        assert (place / "README.md").read_text() == "mine"


def test_a_parent_that_is_a_file_is_named_and_kept(tmp_path):
    (tmp_path / "file").write_text("mine")
    result = invoke("mine", "--kind", "reward", "--out", tmp_path / "file" / "made")
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_fails_in_the_middle_leaves_nothing_behind(tmp_path, monkeypatch):
    files = scaffolding.render("mine", "reward")
    monkeypatch.setattr(scaffolding, "render", lambda *_: {**files, "LICENSE/x": "", "LICENSE": ""})
    with pytest.raises(InputError, match="cannot be written"):
        scaffolding.new_plugin("mine", "reward", tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_nothing_but_the_folder_is_left_where_it_is_written(tmp_path):
    result = invoke("mine", "--kind", "reward", "--out", tmp_path / "deep" / "made")
    assert result.exit_code == 0, result.output
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["made"]


def test_the_folder_has_the_name_of_the_package_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("mine", "--kind", "reward").exit_code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["headwater-mine"]


def test_a_name_that_is_taken_is_written_and_warned_of(tmp_path):
    result = invoke("leapalign", "--kind", "estimator", "--out", tmp_path / "made")
    assert result.exit_code == 0
    assert "headwater-leapalign" in result.output and "Warning" in result.output
    again = invoke("jsonl", "--kind", "observer", "--out", tmp_path / "jsonl")
    assert 'use = "headwater-jsonl:jsonl"' in again.output


def test_every_kind_of_plugin_can_be_rendered():
    for kind in KINDS:
        assert scaffolding.render("mine", kind)
