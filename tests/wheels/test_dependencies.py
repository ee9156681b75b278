"""A package asks for what its modules import, and for nothing else."""

import pytest
from packaging.requirements import Requirement
from wheels import projects
from wheels.projects import names, packages, project

INDIRECT = {
    ("headwater", "tensorboard"): "torch.utils.tensorboard imports it",
    ("headwater-lab", "headwater-classics"): "the exact gradient is an estimator of it, by name",
    ("headwater-trackers", "sqlalchemy"): "mlflow keeps runs in SQLite by it",
    ("headwater-trackers", "alembic"): "mlflow keeps runs in SQLite by it",
}
"""(package, requirement) that no module imports by its name, and why it is asked for."""


def declared(folder):
    """(dependencies, those of its extras)"""
    table = project(folder)
    extras = [text for texts in table.get("optional-dependencies", {}).values() for text in texts]
    return names(table["dependencies"]), names(extras)


@pytest.mark.parametrize("folder", packages())
def test_what_is_imported_is_asked_for(folder):
    always, extras = declared(folder)
    missing = {
        found.distribution: found.place
        for found in projects.imports(folder)
        if found.distribution not in (always | extras if found.optional else always)
    }
    assert missing == {}


@pytest.mark.parametrize("folder", packages())
def test_what_is_asked_for_is_imported(folder):
    imported = {found.distribution for found in projects.imports(folder)}
    own = project(folder)["name"]
    always, extras = declared(folder)
    unused = {name for name in always | extras if name not in imported}
    excused = {name for package, name in INDIRECT if package == own}
    assert unused == excused


def test_the_folders_are_those_of_the_makefile():
    found = {
        p.parent.relative_to(projects.ROOT).as_posix()
        for p in projects.ROOT.glob("*/*/pyproject.toml")
    }
    assert found | {"core"} == set(packages())


@pytest.mark.parametrize("folder", packages())
def test_it_says_which_core_it_works_with(folder):
    from headwater import __version__

    table = project(folder)
    found = {r.name: r.specifier for r in map(Requirement, table["dependencies"])}
    for name in found:
        if name.startswith("headwater"):
            assert __version__ in found[name], name
            assert "1.0" not in found[name], name
    if table["name"].startswith("headwater-"):
        assert "headwater" in found


def test_the_pinned_versions_satisfy_every_package():
    lines = (projects.ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    pins = {projects.canonicalize_name(name): version for name, version in pairs}
    own = {project(folder)["name"] for folder in packages()}
    for folder in packages():
        for text in project(folder)["dependencies"]:
            need = Requirement(text)
            if need.name not in own:
                pin = pins[projects.canonicalize_name(need.name)]
                assert pin in need.specifier, f"{folder}: {text}, pinned {pin}"
