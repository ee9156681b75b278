"""Which plugins and commands this repository ships: what the site describes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import click
import tomli

from headwater.cli import main
from headwater.discovery import KINDS, Entry, entries, import_class

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@cache
def projects() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Distribution name: its folder and its `[project]` table."""
    files = [ROOT / "core" / "pyproject.toml"]
    for shelf in ("plugins", "contrib"):
        files += sorted(ROOT.glob(f"{shelf}/*/pyproject.toml"))
    found = {}
    for file in files:
        project = tomli.loads(file.read_text(encoding="utf-8"))["project"]
        found[project["name"]] = (file.parent, project)
    return found


@cache
def plugins(kind: str) -> tuple[Entry, ...]:
    """The repository's own plugins of a kind that are installed, by name."""
    return tuple(entry for entry in entries(kind) if entry.distribution in projects())


def offered(kind: str) -> set[str]:
    """Names of the repository's plugins of a kind, from its project files alone."""
    return {
        name
        for _, project in projects().values()
        for name in project.get("entry-points", {}).get(f"headwater.{kind}", {})
    }


@cache
def plugin(kind: str, name: str) -> tuple[Entry, type]:
    """One of them with its class; ValueError where it is not installed."""
    for entry in plugins(kind):
        if entry.name == name:
            return entry, import_class(entry)
    raise ValueError(f"no {kind} named {name!r} is installed from this repository")


def folder(entry: Entry) -> str:
    """The package's folder, relative to the root."""
    return projects()[entry.distribution][0].relative_to(ROOT).as_posix()


def everything() -> list[tuple[Entry, type]]:
    """Every installed plugin of the repository, by kind and name."""
    return [plugin(kind, entry.name) for kind in KINDS for entry in plugins(kind)]


@cache
def commands() -> dict[str, tuple[click.Command, str]]:
    """Every command of core and of the repository's packages, and the distribution it is from."""
    context = click.Context(main, info_name="headwater")
    added = {entry.name: entry.distribution for entry in entries("command")}
    found = {}
    for name in main.list_commands(context):
        owner = added.get(name, "headwater")
        command = main.get_command(context, name) if owner in projects() else None
        if command is not None:
            found[name] = (command, owner)
    return found
