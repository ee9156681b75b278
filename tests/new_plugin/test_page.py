"""docs/write-a-plugin.md leads from an empty folder to a run of every kind, as it stands."""

import json
import subprocess
import sys

import pytest
import tomli
from click.testing import CliRunner
from new_plugin import page

from headwater.cli import main
from headwater.installed import KINDS
from support.environments import beside_the_workspace

TITLES = {section.title.lower(): section for section in page.kinds()}


def test_there_is_a_section_for_every_kind():
    assert set(TITLES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_code_entry_point_run_file_test_and_commands(kind):
    section = TITLES[kind]
    paths = [path for path, _ in section.files]
    assert paths == [
        f"src/headwater_lantern/{kind}.py",
        "pyproject.toml",
        f"tests/test_{kind}.py",
    ]
    assert section.tables
    for word in ("headwater show", "headwater check", "headwater run", "python -m pytest"):
        assert any(line.startswith(word) for line in section.commands), word


@pytest.fixture
def lantern(tmp_path):
    folder = tmp_path / "lantern"
    folder.mkdir()
    page.write(folder)
    return folder


def test_the_files_are_clean_to_ruff(lantern):
    rules = ["--select", "E,F,W,I,B,UP", "--line-length", "100", "--target-version", "py311"]
    for command in (["check", *rules], ["format", "--check", "--line-length", "100"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "."],
            cwd=lantern,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_run_file_of_every_section_passes_headwater_check(lantern, offered):
    offered(lantern)
    for section in page.sections():
        (lantern / "run.toml").write_text(page.run_file(section))
        result = CliRunner().invoke(main, ["check", str(lantern / "run.toml")])
        assert result.exit_code == 0, (section.title, result.output)


def test_what_the_estimator_cannot_do_is_told_by_headwater_check(lantern, offered):
    offered(lantern)
    (lantern / "run.toml").write_text(page.run_file(TITLES["estimator"]))
    arguments = ["check", str(lantern / "run.toml"), "--set", "estimator.count=9"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "[estimator]: count is 9 of 8 rollout steps" in result.output


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of the page, with its package installed from a folder `lantern`."""
    made = beside_the_workspace(tmp_path_factory.mktemp("page") / "venv")
    folder = made.folder / "lantern"
    folder.mkdir()
    page.write(folder)
    made.install("-e", folder)
    return made


DRIVER = """
import json, sys
from pathlib import Path
from headwater.cli import main

for title, run_file, commands in json.load(open("commands.json")):
    Path("run.toml").write_text(run_file)
    for words in commands:
        print("$ headwater", *words, flush=True)
        try:
            main(words)
        except SystemExit as end:
            if end.code:
                sys.exit(f"{title}: exit code {end.code}")
"""


@pytest.mark.long
def test_the_commands_of_every_section_work(installed):
    """One process for all: torch is imported once."""
    folder = installed.folder / "lantern"
    work = [(s.title, page.run_file(s), page.headwater_commands(s)) for s in page.sections()]
    assert sum(len(commands) for _, _, commands in work) > 20
    (folder / "commands.json").write_text(json.dumps(work))
    (folder / "driver.py").write_text(DRIVER)
    installed.run("driver.py", cwd=folder)
    offered = tomli.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    for kind in KINDS:
        (plugin,) = offered[f"headwater.{kind}"]
        assert (folder / "runs" / plugin / "summary.json").is_file()


@pytest.mark.long
def test_the_plugins_of_the_page_pass_their_contracts(installed):
    """The commands of the page name one file each; here they are one run."""
    folder = installed.folder / "lantern"
    tests = [line.split()[-1] for s in TITLES.values() for line in s.commands if "pytest" in line]
    assert len(tests) == len(KINDS)
    said = installed.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=folder)
    assert " passed" in said
    assert "failed" not in said and "skipped" not in said
