"""What installed packages offer, read from their metadata folders and nothing else.

The rules are those of `importlib.metadata.entry_points`, which would take longer to import than
the rest of `headwater --help`, and which one unreadable file of one package stops for everybody.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

KINDS = ("backbone", "dynamics", "reward", "algorithm", "estimator", "observer")
GROUPS = (*KINDS, "command", "prompts")


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
        self.requires = ""
        """What it asks of headwater's version, `>=0.1` for instance."""
        self.offers: list[tuple[str, str, str]] = []
        """(kind, name, import path)"""
        self.fault = ""
        """Why its entry points cannot be read; else empty."""


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
    seen: set[str] = set()
    found: list[Package] = []
    for folder, stem in _folders():
        name = _normal(stem)
        if name not in seen:
            seen.add(name)
            if (package := _package(folder, stem)) is not None:
                found.append(package)
    return [*found, *_elsewhere(seen)]


def _normal(name: str) -> str:
    """As package indexes compare names: case, and which of - _ . and how many, do not matter."""
    parts = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(part for part in parts if part)


def _folders() -> Iterator[tuple[str, str]]:
    """Metadata folders on `sys.path`, and the name that each states."""
    for place in dict.fromkeys(sys.path):
        try:
            children = os.listdir(place or ".")  # noqa: PTH208 - pathlib is not imported here
        except OSError:
            continue  # as every import does with a place that is none
        for child in sorted(children):
            if child.endswith((".dist-info", ".egg-info")):
                yield f"{place or '.'}/{child}", child.rpartition(".")[0].partition("-")[0]


def _package(folder: str, stem: str) -> Package | None:
    """What one package offers; None where that is nothing."""
    path = f"{folder}/entry_points.txt"
    try:
        content = _bytes(path)
    except OSError as error:
        package = Package(stem, "unknown")
        package.fault = f"{type(error).__name__}: {error}"
        return package
    if b"headwater" not in content and content.isascii():
        return None
    return _read(content, lambda: _bytes(f"{folder}/METADATA"), path, stem)


def _bytes(path: str) -> bytes:
    """A file's content; empty where there is no such file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    parts = []
    try:
        while part := os.read(file, 1 << 16):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


def _read(content: bytes, metadata: Callable[[], bytes], path: str, stem: str) -> Package | None:
    """A package of its two files; the second is read where it is needed."""
    version = path.rpartition("/")[0].removesuffix(".dist-info").rpartition("-")[2]
    package = Package(stem, version or "unknown")
    try:
        for group, name, target in _points(content.decode("utf-8")):
            if group.startswith("headwater."):
                package.offers.append((group.removeprefix("headwater."), name, target))
    except ValueError as error:
        package.fault = f"{path}: {error}"
    if not package.offers and not package.fault:
        return None
    try:
        _read_headers(metadata().partition(b"\n\n")[0], package)
    except OSError as error:
        package.fault = f"{type(error).__name__}: {error}"
    return package


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
            raise ValueError(f"line {number} is no entry point: {line[:60]!r}")
        yield group, name.strip(), target.strip()


def _read_headers(metadata: bytes, package: Package) -> None:
    """Name, version and what is asked of headwater's version, from the head of a METADATA file."""
    asked = []
    for line in metadata.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        key, value = key.lower(), value.strip()
        if key == "name":
            package.name = value or package.name
        elif key == "version":
            package.version = value or package.version
        elif key == "requires-dist":
            asked += _asked(value)
    package.requires = ",".join(asked)


def _asked(requirement: str) -> list[str]:
    """What a requirement asks of headwater's version: `["<2", ">=1"]`, or nothing."""
    plain, marker, _ = requirement.partition(";")
    end = next((i for i, c in enumerate(plain) if c in " <>=!~(["), len(plain))
    if marker or _normal(plain[:end]) != "headwater":
        return []
    clauses = plain[end:].partition("]")[2] if "[" in plain else plain[end:]
    return [clause for part in clauses.split(",") if (clause := part.strip(" ()"))]


def _elsewhere(seen: set[str]) -> Iterator[Package]:
    """Packages in archives on `sys.path`, and those of an importer that is not Python's own."""
    archives = [place for place in sys.path if os.path.isfile(place)]  # noqa: PTH113
    finders = [
        finder
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
        and getattr(finder, "__module__", "") != "_frozen_importlib_external"
    ]
    if not archives and not finders:
        return
    from functools import partial
    from importlib.metadata import DistributionFinder, distributions

    found = [*distributions(path=archives)] if archives else []
    for finder in finders:
        found += finder.find_distributions(DistributionFinder.Context())
    for distribution in found:
        stem = str(distribution.metadata["Name"] or "unknown")
        name = _normal(stem)
        if name in seen:
            continue
        seen.add(name)
        points = (distribution.read_text("entry_points.txt") or "").encode()
        headers = str(distribution.read_text("METADATA") or "")
        if (package := _read(points, partial(str.encode, headers), stem, stem)) is not None:
            yield package
