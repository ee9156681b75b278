"""What installed packages offer, read from their metadata folders and nothing else.

The rules are those of `importlib.metadata.entry_points`, which would take longer to import than
the rest of `headwater --help`, and which one unreadable file of one package stops for everybody.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

KINDS = ("backbone", "dynamics", "reward", "algorithm", "estimator", "observer")
GROUPS = (*KINDS, "command", "prompts")

Read = Callable[[str], bytes]
"""A metadata file by its name; empty where there is none."""


class Entry:
    """One plugin, command or prompt list on offer. A plain class: attrs is not imported here."""

    def __init__(self, kind: str, name: str, target: str, package: Package) -> None:
        self.kind = kind
        self.name = name
        self.target = target
        """Import path, `module:Class`."""
        self.package = package

    @property
    def distribution(self) -> str:
        """Name of its package."""
        return self.package.name

    @property
    def version(self) -> str:
        """Version of its package."""
        return self.package.version

    @property
    def title(self) -> str:
        """For messages: distribution, version and import path."""
        return f"{self.distribution} {self.version} ({self.target})"


class Package:
    """An installed package that offers something, or whose list of offers cannot be read."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.requires: list[str] = []
        """Its requirements, as its metadata has them: `headwater>=0.1` for instance."""
        self.offers: list[tuple[str, str, str]] = []
        """(kind, name, import path)"""
        self.fault = ""
        """Why its metadata cannot be read; else empty."""


def entries(kind: str) -> list[Entry]:
    """Every installed plugin of a kind, sorted by name and distribution."""
    found = [
        Entry(kind, name, target, package)
        for package in packages()
        for own, name, target in package.offers
        if own == kind
    ]
    return sorted(found, key=lambda entry: (entry.name, entry.distribution))


def packages() -> list[Package]:
    """The packages with offers or faults; of two installations the first on `sys.path` counts."""
    found: dict[str, Package | None] = {}
    for stem, read in _installations():
        name, _, version = stem.partition("-")
        if normal(name) not in found:
            found[normal(name)] = _package(name, version.partition("-")[0], read)
    return [package for package in found.values() if package is not None]


def normal(name: str) -> str:
    """As package indexes compare names: case, and which of - _ . and how many, do not matter."""
    parts = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(part for part in parts if part)


def _installations() -> Iterator[tuple[str, Read]]:
    """NAME-VERSION of everything that is installed, in the order of `sys.path`."""
    for place in dict.fromkeys(sys.path):
        try:
            children = os.listdir(place or ".")  # noqa: PTH208 - pathlib is not imported here
        except OSError:
            if os.path.isfile(place):  # noqa: PTH113
                yield from _in_archive(place)
            continue  # as every import does with a place that is none
        for child in sorted(children):
            stem, _, ending = child.rpartition(".")
            if not stem and place.endswith(".egg"):
                stem = os.path.basename(place)  # noqa: PTH119
            if ending.lower() in ("dist-info", "egg-info") and stem[:1] not in ("", "~"):
                yield stem, _reader(f"{place or '.'}/{child}")  # ~: what pip could not remove
    yield from _of_other_finders()


def _reader(folder: str) -> Read:
    def read(name: str) -> bytes:
        try:
            file = os.open(f"{folder}/{name}", os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        parts = []
        try:
            while part := os.read(file, 1 << 16):
                parts.append(part)
        finally:
            os.close(file)
        return b"".join(parts)

    return read


def _in_archive(place: str) -> Iterator[tuple[str, Read]]:
    """What a wheel or an egg on `sys.path` holds."""
    from importlib.metadata import distributions

    return map(_installation, distributions(path=[place]))


def _of_other_finders() -> Iterator[tuple[str, Read]]:
    """What importers know that are not Python's own."""
    for finder in sys.meta_path:
        own = getattr(finder, "__module__", "") == "_frozen_importlib_external"
        if not own and hasattr(finder, "find_distributions"):
            from importlib.metadata import DistributionFinder

            yield from map(_installation, finder.find_distributions(DistributionFinder.Context()))


def _installation(distribution: Distribution) -> tuple[str, Read]:
    def read(name: str) -> bytes:
        return (distribution.read_text(name) or "").encode()

    try:
        name, version = str(distribution.metadata["Name"]), distribution.version
    except (TypeError, ValueError, KeyError):  # by Python's version: none, or no text
        return "unknown", read
    return f"{name.replace('-', '_')}-{version}", read


def _package(name: str, version: str, read: Read) -> Package | None:
    """What one package offers; None where that is nothing."""
    package = Package(name, version or "unknown")
    try:
        content = read("entry_points.txt")
        if b"headwater" not in content and content.isascii():
            return None
        _read_headers(read("METADATA") or read("PKG-INFO"), package)
        for group, offer, target in _points(content.decode("utf-8")):
            if group.startswith("headwater."):
                package.offers.append((group.removeprefix("headwater."), offer, target))
    except OSError as error:
        package.fault = f"{type(error).__name__}: {error}"
    except ValueError as error:
        package.fault = f"its metadata is none: {error}"
    return package if package.offers or package.fault else None


def _points(text: str) -> Iterator[tuple[str, str, str]]:
    """(group, name, import path) of every line. ValueError for one that states no entry point."""
    group = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
            continue
        name, equals, target = line.partition("=")
        if not equals:
            raise ValueError(f"line {number} of entry_points.txt is no entry point: {line[:60]!r}")
        yield group, name.strip(), target.strip()


def _read_headers(metadata: bytes, package: Package) -> None:
    """Name, version and requirements, from the head of a METADATA file."""
    for line in metadata.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        key, value = key.lower(), value.strip()
        if not line:
            break  # a description follows
        if key == "name":
            package.name = value or package.name
        elif key == "version":
            package.version = value or package.version
        elif key == "requires-dist":
            package.requires.append(value)
