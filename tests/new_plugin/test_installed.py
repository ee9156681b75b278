"""A rendered package of every kind, installed in an environment of its own, passes its tests."""

import pytest

from headwater import scaffolding
from headwater.installed import KINDS
from support.environments import beside_the_workspace

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One environment with the packages of all kinds, each in the folder `mine-KIND`."""
    made = beside_the_workspace(tmp_path_factory.mktemp("environment") / "venv")
    folders = [made.folder / f"mine-{kind}" for kind in KINDS]
    for kind, folder in zip(KINDS, folders, strict=True):
        scaffolding.new_plugin(f"mine-{kind}", kind, folder)
    made.install(*folders)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind, environment):
    folder = environment.folder / f"mine-{kind}"
    said = environment.run("-m", "pytest", "-p", "no:cacheprovider", "--durations=3", cwd=folder)
    assert " passed" in said
    assert "failed" not in said and "skipped" not in said


@pytest.mark.parametrize("kind", ["backbone", "observer"])
def test_its_run_file_runs_from_the_command_line(kind, environment):
    """Two kinds: the tests that come with a package train its run file, whatever the kind."""
    folder = environment.folder / f"mine-{kind}"
    example = f"examples/mine-{kind}.toml"
    short = ["--set", "steps=2", "--set", "evaluation.count=2"]
    environment.headwater("run", example, *short, "--out", "out", cwd=folder)
    assert (folder / "out" / "summary.json").is_file()


def test_they_are_installed_from_the_environment_and_listed(environment):
    said = environment.headwater("plugins")
    for kind in KINDS:
        assert f"mine-{kind}" in said
        where = environment.run("-c", f"import headwater_mine_{kind} as m; print(m.__file__)")
        assert where.startswith(str(environment.site))
