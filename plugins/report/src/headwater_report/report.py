"""From run folders to the files that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from headwater.errors import InputError, OutputError
from headwater.run_folder import PARTIAL, sync
from headwater_report.facts import as_json, facts, titled
from headwater_report.reading import read_run
from headwater_report.styles import MOST


@attrs.frozen
class Targets:
    """Files to be written; None for those that are not wanted."""

    page: Path | None = None
    picture: Path | None = None


def check(folders: Sequence[Path], targets: Targets) -> None:
    """InputError for what cannot work, told before anything is read."""
    problems = []
    if len(folders) > MOST:
        problems.append(f"expected at most {MOST} runs in one report, got {len(folders)}")
    same = {str(f) for f in folders if [g.resolve() for g in folders].count(f.resolve()) > 1}
    problems += [f"{name} is named twice" for name in sorted(same)]
    for option, path, suffixes in (
        ("--out", targets.page, (".html", ".htm")),
        ("--png", targets.picture, (".png",)),
    ):
        if path is None:
            continue
        if path.suffix.lower() not in suffixes:
            expected = " or ".join(suffixes)
            problems.append(f"{option}: expected a {expected} file, got {str(path)!r}")
        if path.is_dir():
            problems.append(f"{option}: {path} is a folder")
        parent = path.absolute().parent
        if not parent.is_dir() and parent not in [f.absolute() for f in folders]:
            problems.append(f"{option}: no such folder {str(parent)!r}")
    if targets.picture is not None and find_spec("matplotlib") is None:
        problems.append(
            "--png: pictures need matplotlib, which is not installed: "
            "pip install 'headwater-report[plots]'"
        )
    if problems:
        raise InputError("report", problems)


def make(folders: Sequence[Path], targets: Targets) -> dict[str, Any]:
    """Read the runs and write the files. Returns: the report's numbers, ready for JSON.

    Raises InputError for all folders that are no run, and OutputError for a file that cannot be
    written; then no older file of its name is touched.
    """
    records, problems = [], []
    for folder in folders:
        try:
            records.append(read_run(folder))
        except InputError as error:
            problems += [f"{error.where}: {problem}" for problem in error.problems]
    if problems:
        raise InputError("report", problems)
    found = [facts(record) for record in titled(records)]
    if targets.page is not None:
        from headwater_report.page import page

        write(targets.page, page(found).encode())
    if targets.picture is not None:
        from headwater_report.slide import slide

        write(targets.picture, slide(found))
    return as_json(found)


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        partial.write_bytes(data)
        sync(partial)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # the first error is the one to be read
            partial.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
