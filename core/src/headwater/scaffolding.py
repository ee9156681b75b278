"""A new plugin package from the templates that come with core.

A template is a text with `$`-names (string.Template). What is rendered works as it stands: a small
plugin of its kind, its tests on the contract of the kind, and a run file.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path
from string import Template

import attrs

from headwater import __version__
from headwater.errors import InputError, did_you_mean
from headwater.installed import KINDS, entries

LONGEST = 28
"""Characters of a name: longer ones would not fit the lines of the templates."""


@attrs.frozen(eq=False)
class Kind:
    """What differs between the kinds beside the templates."""

    summary: str
    """One sentence on the plugin that is rendered."""
    usage: str
    """The lines of a run file that use it, with `$name`."""
    needs: tuple[str, ...]
    """What the plugin imports beside headwater."""
    companions: tuple[str, ...]
    """Packages of plugins that its example and tests use."""


_TORCH = ("torch>=2.6", "attrs>=24.2")
_DIRECT = ("headwater-tiny", "headwater-direct", "headwater-flowbp")

_KINDS: Mapping[str, Kind] = {
    "estimator": Kind(
        "Every second step is evaluated again and carries its successor's gradient too.",
        '[estimator]\nuse = "$name"\nstride = 2',
        _TORCH,
        ("headwater-tiny", "headwater-direct"),
    ),
    "reward": Kind(
        "The contrast of an image: the standard deviation of its luminance.",
        '[reward.$name]\nuse = "$name"\nscale = 1.0',
        _TORCH,
        _DIRECT,
    ),
    "algorithm": Kind(
        "The squared distance of the rewards to a target.",
        '[algorithm]\nuse = "$name"\ntarget = 1.0',
        _TORCH,
        ("headwater-tiny", "headwater-flowbp"),
    ),
    "dynamics": Kind(
        "An SDE whose noise fades with sigma.",
        '[dynamics]\nuse = "$name"\nnoise = 0.7',
        _TORCH,
        ("headwater-tiny", "headwater-grpo", "headwater-classics"),
    ),
    "backbone": Kind(
        "Every prompt is a colour; the flow is known in closed form, a small network is trained.",
        '[backbone]\nuse = "$name"\nspread = 0.2',
        (*_TORCH, "safetensors>=0.4.5"),
        _DIRECT,
    ),
    "observer": Kind(
        "It counts steps and evaluations, and writes a line when the run ends.",
        '[output]\ntrackers = ["jsonl", "$name"]',
        ("attrs>=24.2",),
        _DIRECT,
    ),
}


def new_plugin(name: str, kind: str, folder: Path) -> list[str]:
    """Write a package of the plugin `name` into `folder`, which must not exist.

    Returns: warnings, one sentence each. Raises InputError for a name, a kind or a folder that will
    not do; then nothing is written.
    """
    problems = name_problems(name)
    if kind not in KINDS:
        problems.append(f"--kind: no kind {kind!r}; {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    if folder.exists() or folder.is_symlink():
        problems.append(f"--out: {folder} exists already and is left as it is; choose another")
    if problems:
        raise InputError("new-plugin", problems)
    _write(folder, render(name, kind))
    return collisions(name, kind)


def name_problems(name: str) -> list[str]:
    """Why a name cannot be a plugin's, in a sentence or none."""
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) and len(name) <= LONGEST:
        if name.startswith("headwater"):
            return [f"NAME: 'headwater-' is put before it, got {name!r}; leave it out"]
        return []
    better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:LONGEST].strip("-")
    hint = f"; {better!r} would do" if better and not name_problems(better) else ""
    return [
        f"NAME: expected at most {LONGEST} characters: words of small letters and digits with "
        f"hyphens between them, a letter first, got {name[:80]!r}{hint}"
    ]


def collisions(name: str, kind: str) -> list[str]:
    """Names that an installed package has already."""
    found = [
        f"{entry.title} offers the {kind} {name!r} already; with both installed a run file has to "
        f'say which it means: use = "headwater-{name}:{name}"'
        for entry in entries(kind)
        if entry.name == name and entry.distribution != f"headwater-{name}"
    ]
    try:
        version = metadata.version(f"headwater-{name}")
    except metadata.PackageNotFoundError:
        return found
    return [*found, f"headwater-{name} {version} is installed; installing this one replaces it"]


def render(name: str, kind: str) -> dict[str, str]:
    """The files of a package, by their path in it."""
    words = _words(name, kind)
    module = words["module"]
    paths = {
        "pyproject.toml": "common/pyproject.toml",
        "README.md": "common/README.md",
        ".gitignore": "common/gitignore",
        ".github/workflows/test.yml": "common/test.yml",
        f"src/{module}/__init__.py": "common/init.py",
        f"src/{module}/{kind}.py": f"{kind}/plugin.py",
        f"examples/{name}.toml": f"{kind}/run.toml",
        "tests/conftest.py": "common/conftest.py",
        f"tests/test_{kind}.py": f"{kind}/test_plugin.py",
        "tests/test_example.py": "common/test_example.py",
    }
    files = {to: Template(_text(f"{of}.tmpl")).substitute(words) for to, of in paths.items()}
    return {**files, f"src/{module}/py.typed": "", "LICENSE": _text("common/LICENSE")}


def _words(name: str, kind: str) -> dict[str, str]:
    facts = _KINDS[kind]
    major, minor = (int(part) for part in __version__.split(".")[:2])
    needs = [*facts.needs]
    return {
        "name": name,
        "kind": kind,
        "distribution": f"headwater-{name}",
        "module": f"headwater_{name.replace('-', '_')}",
        "class_name": "".join(part.capitalize() for part in (*name.split("-"), kind)),
        "versions": f">={major}.{minor},<{major}.{minor + 1}",
        "needs": "".join(f', "{need}"' for need in needs),
        "companions": "".join(f', "{package}"' for package in facts.companions),
        "summary": facts.summary,
        "usage": Template(facts.usage).substitute(name=name),
    }


def _text(path: str) -> str:
    return (resources.files("headwater") / "templates" / path).read_text(encoding="utf-8")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """All files or none: they are written beside the folder, which then gets its name."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-plugin-", dir=folder.parent) as scratch:
            made = Path(scratch) / "package"
            for path, text in files.items():
                file = made / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            made.rename(folder)
    except OSError as error:
        reason = f"{folder} cannot be written: {error.strerror or error}"
        raise InputError("new-plugin", [f"--out: {reason}"]) from error
