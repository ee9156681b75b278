"""`headwater cite`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click


@click.command("cite")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
def command(file: Path, overrides: tuple[str, ...]) -> None:
    """Print BibTeX for exactly what a run file uses, from its plugins' metadata."""
    from headwater.composition import compose

    entries, silent = bibliography(compose(file, overrides))
    click.echo("\n\n".join(entries))
    if silent:
        click.echo(f"% no paper is stated by: {', '.join(silent)}")


def bibliography(run: Any) -> tuple[list[str], list[str]]:
    """BibTeX entries, one a paper in the run file's order, and the tables that state none.

    A plugin states `paper`, "arXiv NNNN.NNNNN" or a URL, or brings its own `bibtex`.
    """
    users: dict[str, list[str]] = {}
    silent = []
    for named in run.named:
        source = getattr(named.plugin, "bibtex", "") or getattr(named.plugin, "paper", "")
        if source:
            users.setdefault(source, []).append(f"{named.key} {named.entry.name}")
        elif named.key.split(".")[0] != "output":
            silent.append(f"{named.key} {named.entry.name}")
    return [_entry(source, names) for source, names in users.items()], silent


def _entry(source: str, users: list[str]) -> str:
    if source.lstrip().startswith("@"):
        return source.strip()
    note = "; ".join(users)
    found = re.fullmatch(r"arXiv (\d{2})(\d{2})\.(\d{4,5})", source)
    if not found:
        key = re.sub(r"\W+", "-", source).strip("-").lower()
        return f"@misc{{{key},\n  howpublished = {{{source}}},\n  note = {{{note}}}\n}}"
    number = source.removeprefix("arXiv ")
    return (
        f"@misc{{arxiv:{number},\n"
        f"  eprint = {{{number}}},\n"
        f"  archivePrefix = {{arXiv}},\n"
        f"  year = {{20{found[1]}}},\n"
        f"  url = {{https://arxiv.org/abs/{number}}},\n"
        f"  note = {{{note}}}\n}}"
    )
