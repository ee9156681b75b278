"""The shipped run files, by model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli

from sitegen import shipped, text

TITLES = {
    "tiny": "The shipped tiny model",
    "sd3": "Stable Diffusion 3 and 3.5",
    "flux": "FLUX.1",
    "flux2": "FLUX.2 Klein",
    "qwen-image": "Qwen-Image",
    "z-image": "Z-Image",
}


def run_files() -> dict[Path, dict[str, Any]]:
    """Every shipped run file with its tables; files that are parts of one are left out."""
    found = {}
    for pattern in ("plugins/*/examples/*.toml", "contrib/*/examples/*.toml"):
        for file in sorted(shipped.ROOT.glob(pattern)):
            tables = tomli.loads(file.read_text(encoding="utf-8"))
            if {"backbone", "estimator", "steps"} <= set(tables):
                found[file] = tables
    return found


def header(file: Path) -> str:
    """The comment that a run file begins with."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def recipes() -> str:
    """Every run file: where it is, what it reproduces, its algorithm and estimator."""
    groups: dict[str, list[list[str]]] = {}
    for file, tables in run_files().items():
        said = header(file)
        path = file.relative_to(shipped.ROOT).as_posix()
        if not said:
            raise ValueError(f"{path} has no comment that says what it is")
        parts = f"`{tables['algorithm']['use']}`, `{tables['estimator']['use']}`"
        groups.setdefault(tables["backbone"]["use"], []).append(
            [f"`{path}`", parts, text.escaped(said)]
        )
    order = [*(name for name in TITLES if name in groups), *sorted(set(groups) - set(TITLES))]
    out = []
    for name in order:
        out += [
            f"## {TITLES.get(name, name)}",
            text.table(("run file", "with", "what it is"), groups[name]),
        ]
    return "\n\n".join(out)
