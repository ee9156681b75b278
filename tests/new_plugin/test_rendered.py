"""What `headwater new-plugin` writes is well-formed for names of every length."""

import re
import subprocess
import sys

import pytest
import tomli
from click.testing import CliRunner

from headwater import scaffolding
from headwater.cli import main
from headwater.installed import KINDS

NAMES = ("q", "every-second", "k2-b7", "a-name-of-28-letters-exactly")
PAIRS = [(name, kind) for kind in KINDS for name in NAMES]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """(name, kind): the folder of its package."""
    folder = tmp_path_factory.mktemp("packages")
    made = {}
    for name, kind in PAIRS:
        made[name, kind] = folder / kind / name
        scaffolding.new_plugin(name, kind, made[name, kind])
    return made


def test_the_longest_name_is_among_the_names():
    assert max(map(len, NAMES)) == scaffolding.LONGEST


def test_every_kind_has_code_test_readme_run_file_licence_and_ci(packages):
    for (name, kind), folder in packages.items():
        module = f"headwater_{name.replace('-', '_')}"
        files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        assert files == {
            "pyproject.toml",
            "README.md",
            "LICENSE",
            ".gitignore",
            ".github/workflows/test.yml",
            f"src/{module}/__init__.py",
            f"src/{module}/{kind}.py",
            f"src/{module}/py.typed",
            f"examples/{name}.toml",
            "tests/conftest.py",
            "tests/test_example.py",
            f"tests/test_{kind}.py",
        }


def test_no_placeholder_is_left(packages):
    for folder in packages.values():
        for path in folder.rglob("*"):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"\$[a-z_{](?!\{ matrix)", text), path


def test_the_code_is_clean_to_ruff_by_the_packages_own_settings(packages):
    (root,) = {folder.parents[1] for folder in packages.values()}
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", str(root)],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [NAMES[0], NAMES[-1]])
def test_the_run_file_passes_headwater_check(name, kind, packages, offered):
    folder = packages[name, kind]
    before = CliRunner().invoke(main, ["check", str(folder / "examples" / f"{name}.toml")])
    assert before.exit_code == 2
    assert name in before.output
    offered(folder)
    result = CliRunner().invoke(main, ["check", str(folder / "examples" / f"{name}.toml")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_listed_and_shown(kind, packages, offered):
    name = "every-second"
    offered(packages[name, kind])
    listed = CliRunner().invoke(main, ["plugins"]).output
    assert re.search(rf"\b{name}\b.*headwater-{name}", listed), listed
    shown = CliRunner().invoke(main, ["show", kind, name])
    assert shown.exit_code == 0, shown.output
    assert scaffolding.render(name, kind)["README.md"].count(f"show {kind} {name}") == 1


def test_a_usage_in_a_readme_is_a_part_of_the_run_file(packages):
    for (name, kind), folder in packages.items():
        whole = tomli.loads((folder / "examples" / f"{name}.toml").read_text())
        (usage,) = re.findall(r"```toml\n(.*?)```", (folder / "README.md").read_text(), re.S)
        for table, keys in tomli.loads(usage).items():
            assert keys.items() <= whole[table].items(), (kind, table)


def test_only_core_of_this_minor_version_is_asked_for(packages):
    from packaging.requirements import Requirement
    from packaging.version import Version

    from headwater import __version__

    for folder in packages.values():
        project = tomli.loads((folder / "pyproject.toml").read_text())["project"]
        needs = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
        here = Version(__version__)
        assert __version__ in needs["headwater"]
        assert f"{here.major}.{here.minor + 1}.0" not in needs["headwater"]
        assert project["license"] == "Apache-2.0"
