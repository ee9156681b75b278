"""What is installed is read as Python's own `importlib.metadata` reads it, and more patiently."""

import sys
import zipfile
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

import headwater
from headwater.discovery import find, version_fault
from headwater.errors import PluginError
from headwater.installed import GROUPS, Entry, Package, entries, packages
from headwater.testing.packages import write_package

SOURCE = "class Mine: pass"
POINTS = "[headwater.estimator]\nmine = theirs:Mine\n"
HEAD = "Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n"


def offers():
    """(distribution, version, import path) of everybody's estimator `mine`."""
    return [(e.distribution, e.version, e.target) for e in entries("estimator") if e.name == "mine"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that stands first on `sys.path`."""
    folder = tmp_path / "first"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def write(folder, head="METADATA", points=POINTS, text=HEAD):
    """A metadata folder of two files; `head` is the name of the first."""
    folder.mkdir(parents=True)
    for name, content in ((head, text), ("entry_points.txt", points)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def assert_as_python_reads(group):
    theirs = metadata.entry_points(group=f"headwater.{group}")
    expected = {(p.name, p.value, p.dist.name, p.dist.version) for p in theirs}
    assert {(e.name, e.target, e.distribution, e.version) for e in entries(group)} == expected
    assert expected


@pytest.mark.parametrize("group", GROUPS)
def test_entry_points_are_those_that_python_itself_finds(group):
    assert_as_python_reads(group)


@pytest.mark.parametrize("where", ["theirs.egg-info", "theirs-1.2-py3.11.egg-info"])
def test_the_metadata_of_a_source_folder_is_read(place, where):
    write(place / where, "PKG-INFO")
    assert offers() == [("theirs", "1.2", "theirs:Mine")]
    assert_as_python_reads("estimator")


def test_an_egg_is_read_whether_folder_or_archive(place, tmp_path, monkeypatch):
    egg = place / "theirs-1.2-py3.11.egg"
    write(egg / "EGG-INFO", "PKG-INFO")
    assert offers() == []
    monkeypatch.setattr(sys, "path", [str(egg), *sys.path])
    assert offers() == [("theirs", "1.2", "theirs:Mine")]
    assert_as_python_reads("estimator")
    zipped = tmp_path / "theirs-1.2-py3.11.egg"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("EGG-INFO/entry_points.txt", POINTS)
        archive.writestr("EGG-INFO/PKG-INFO", HEAD)
    monkeypatch.setattr(sys, "path", [str(zipped), *sys.path[1:]])
    assert offers() == [("theirs", "1.2", "theirs:Mine")]
    assert_as_python_reads("estimator")


def test_an_archive_on_the_path_is_read_too(tmp_path, monkeypatch):
    write_package(tmp_path / "site", "zipped", {"estimator mine": "Mine"}, SOURCE)
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        for path in (tmp_path / "site").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "zipped.zip"))
    assert offers() == [("zipped", "1.0", "zipped:Mine")]
    assert_as_python_reads("estimator")
    assert find("estimator", "mine").package.fault == ""


def test_an_archive_that_is_damaged_holds_nothing(tmp_path, monkeypatch):
    before = len(packages())
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no archive")
    monkeypatch.syspath_prepend(str(tmp_path / "bad.zip"))
    assert len(packages()) == before


def test_of_two_installations_the_first_on_the_path_counts(place, tmp_path, monkeypatch):
    write_package(place, "their-package", {"estimator mine": "Mine"}, SOURCE, "2.0")
    write_package(tmp_path / "second", "Their.Package", {"estimator mine": "Old"}, SOURCE, "1.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "second"), str(place)])
    assert offers() == [("their-package", "2.0", "their_package:Mine")]
    assert_as_python_reads("estimator")


def test_a_first_installation_without_plugins_hides_a_second_one(place, tmp_path, monkeypatch):
    write_package(place, "their-package", {}, SOURCE)
    write_package(tmp_path / "second", "their_package", {"estimator mine": "Mine"}, SOURCE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "second")])
    assert offers() == []
    assert_as_python_reads("estimator")


def test_what_an_interrupted_removal_leaves_is_not_installed(place):
    write_package(place, "their-package", {"estimator mine": "Mine"}, SOURCE)
    write(place / "~heir_package-1.0.dist-info", text="Name: their-package\nVersion: 1.0\n")
    assert len(offers()) == 1


def test_a_distribution_is_named_in_any_spelling(place):
    write_package(place, "Their-Package", {"estimator mine": "Mine"}, SOURCE)
    write_package(place, "other", {"estimator mine": "Mine"}, SOURCE)
    for spelling in ("Their-Package", "their_package", "THEIR.package"):
        assert find("estimator", f"{spelling}:mine").distribution == "Their-Package"
    with pytest.raises(PluginError, match=r"is offered by Their-Package 1\.0 and other 1\.0"):
        find("estimator", "mine")


def test_an_importer_of_ones_own_is_asked(monkeypatch):
    class Theirs(metadata.Distribution):
        def read_text(self, filename):
            head = "Metadata-Version: 2.1\nName: my-theirs\nVersion: 3\n"
            return {"entry_points.txt": POINTS, "METADATA": head}.get(filename)

        def locate_file(self, path):
            return path

    class Finder:
        @classmethod
        def find_spec(cls, *_):
            return None

        @classmethod
        def find_distributions(cls, context):
            return [Theirs()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert offers() == [("my-theirs", "3", "theirs:Mine")]
    assert_as_python_reads("estimator")


def test_a_description_is_no_head_and_other_letters_are_kept(place):
    head = "Metadata-Version: 2.1\r\nName: théirs\r\nVersion: 1.2\r\n\r\nVersion: 9\r\n"
    write(place / "theirs-1.2.dist-info", text=head)
    assert offers() == [("théirs", "1.2", "theirs:Mine")]


@pytest.mark.parametrize(
    ("points", "cause"),
    [
        (b"\x80\x04\x95headwater\xff", "can't decode byte"),
        (b"\xff\xfe[\x00h\x00", "can't decode byte"),
        (b"[headwater.estimator]\nmine", "line 2 of entry_points.txt is no entry point: 'mine'"),
        (b"headwater", "line 1 of entry_points.txt is no entry point"),
    ],
)
def test_a_list_of_offers_that_is_none_is_a_fault_of_its_package(place, points, cause):
    write(place / "theirs-1.2.dist-info", points=points)
    (fault,) = [(p.name, p.version, p.fault) for p in packages() if p.fault]
    assert fault[:2] == ("theirs", "1.2")
    assert cause in fault[2]
    with pytest.raises(PluginError, match=r"What theirs 1\.2 offers cannot be read: .*"):
        find("estimator", "mine")


def test_a_metadata_folder_that_is_a_file_or_empty_offers_nothing(place):
    before = len(packages())
    (place / "one-1.0.dist-info").write_text("")
    (place / "two-1.0.dist-info").mkdir()
    (place / "EGG-INFO").mkdir()
    (place / ".dist-info").mkdir()
    assert len(packages()) == before


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ("headwater", True),
        ("Headwater >=0.1,<0.2", True),
        ("headwater[8bit]~=0.1", True),
        ("headwater (>=0.0.1)", True),
        ("headwater>=9", False),
        ("headwater<0.1", False),
        ("headwater[8bit] == 9.*", False),
        ('headwater>=9; python_version >= "3"', False),
        ('headwater>=9; extra == "x"', True),
        ('headwater>=9; sys_platform == "nowhere"', True),
        ("headwater-lab>=9", True),
        ("torch>=99", True),
    ],
)
def test_what_a_package_asks_of_headwater_is_read_as_pip_reads_it(requirement, fits):
    assert SpecifierSet("~=0.1").contains(headwater.__version__), "the cases are for 0.1"
    package = Package("theirs", "1.0")
    package.requires = ["attrs", requirement]
    fault = version_fault(Entry("estimator", "mine", "theirs:Mine", package))
    assert fault == "" if fits else "it needs headwater" in fault


def test_a_requirement_that_is_none_is_said():
    package = Package("theirs", "1.0")
    package.requires = ["headwater >= "]
    fault = version_fault(Entry("estimator", "mine", "theirs:Mine", package))
    assert fault == "its metadata requires 'headwater >= ', which is no requirement"
