"""Every package builds a wheel that holds what it needs and nothing else, and works from it."""

import email
import subprocess
import sys
import zipfile

import attrs
import pytest
from wheels.projects import ROOT, module_of, packages, project

from headwater import __version__
from support.environments import OUTER, without_the_workspace

pytestmark = pytest.mark.long


@attrs.frozen(eq=False)
class Wheel:
    path: object
    files: dict
    """Name in the archive: bytes."""

    @property
    def information(self):
        (name,) = [n for n in self.files if n.endswith(".dist-info/METADATA")]
        return email.message_from_string(self.files[name].decode("utf-8"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Folder of a package: its wheel."""
    out = tmp_path_factory.mktemp("wheels")
    flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    folders = [str(ROOT / folder) for folder in packages()]
    command = [sys.executable, "-m", "pip", "wheel", *flags, "--no-index", "-w", str(out), *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for folder in packages():
        stem = project(folder)["name"].replace("-", "_")
        (path,) = out.glob(f"{stem}-[0-9]*.whl")
        with zipfile.ZipFile(path) as archive:
            files = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
        found[folder] = Wheel(path, files)
    return found


@pytest.mark.parametrize("folder", packages())
def test_a_wheel_holds_every_file_of_its_module_and_no_other(folder, wheels):
    module = module_of(folder)
    expected = {
        path.relative_to(module.parent).as_posix(): path.read_bytes()
        for path in module.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {n: b for n, b in wheels[folder].files.items() if ".dist-info/" not in n}
    assert set(found) == set(expected)
    assert found == expected
    assert f"{module.name}/py.typed" in found


@pytest.mark.parametrize("folder", packages())
def test_a_wheel_names_no_place_of_this_machine(folder, wheels):
    for name, content in wheels[folder].files.items():
        for place in (ROOT, OUTER):
            assert str(place).encode() not in content, name


@pytest.mark.parametrize("folder", packages())
def test_its_metadata_has_licence_readme_version_and_python(folder, wheels):
    found, table = wheels[folder].information, project(folder)
    assert found["License-Expression"] == "Apache-2.0"
    licences = [n for n in wheels[folder].files if n.endswith("dist-info/licenses/LICENSE")]
    assert wheels[folder].files[licences[0]] == (ROOT / "LICENSE").read_bytes()
    assert found["Requires-Python"] == ">=3.11"
    assert found["Version"] == table["version"]
    assert found["Summary"] == table["description"]
    assert len(found.get_payload().strip().splitlines()) >= 3, "a README of a title alone"


def test_the_version_of_core_is_the_one_it_says(wheels):
    assert wheels["core"].information["Version"] == __version__


@pytest.fixture(scope="module")
def fresh(wheels, tmp_path_factory):
    """Four wheels in an environment that sees third-party packages and nothing of the workspace."""
    made = without_the_workspace(tmp_path_factory.mktemp("fresh") / "venv")
    said = made.run("-c", "import headwater", expect=1)
    assert "No module named 'headwater'" in said
    chosen = ("core", "plugins/tiny", "plugins/direct", "plugins/flowbp")
    made.install(*(wheels[folder].path for folder in chosen))
    return made


def test_four_wheels_train_the_tiny_model_far_from_the_repository(fresh):
    example = ROOT / "plugins" / "flowbp" / "examples" / "demo.toml"
    file = fresh.folder / "demo.toml"
    file.write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    short = ["steps=2", "prompts.per_step=4", "prompts.micro_batch=4", "evaluation.count=2"]
    sets = [word for key in short for word in ("--set", key)]
    fresh.headwater("check", file, *sets)
    fresh.headwater("run", file, *sets, "--out", "out")
    assert (fresh.folder / "out" / "summary.json").is_file()
    fresh.headwater("sample", "out", "--prompt", "a red circle")


def test_only_what_is_installed_is_on_offer(fresh):
    said = fresh.headwater("plugins")
    assert "flowbp-lagrange" in said and "tiny-preference" in said
    assert "leapalign" not in said and "flow-grpo" not in said
    where = fresh.run("-c", "import headwater, headwater_tiny as t; print(headwater.__file__, t)")
    assert str(ROOT) not in where


def test_the_templates_are_in_the_wheel(fresh):
    fresh.headwater("new-plugin", "mine", "--kind", "reward")
    assert (fresh.folder / "headwater-mine" / "LICENSE").is_file()


LOAD = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(sys.argv) - 1, "modules")
"""


def test_every_package_is_imported_from_its_wheel(wheels, fresh):
    """All modules but the test kit, whose extra is pytest."""
    fresh.install(*(w.path for f, w in wheels.items()))
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for wheel in wheels.values()
        for name in wheel.files
        if name.endswith(".py") and "/__main__" not in name and "/testing/" not in name
    ]
    assert f"{len(modules)} modules" in fresh.run("-c", LOAD, *modules)
    for problem in fresh.run("-m", "pip", "check", expect=None).splitlines():
        assert not problem.startswith(("headwater", "opponent")), problem
