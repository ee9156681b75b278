"""`headwater plugins`."""

from __future__ import annotations

import json

import click

from headwater.installed import GROUPS, Entry, packages


@click.command("plugins")
@click.option("--check", is_flag=True, help="Import each plugin and say which are broken.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(check: bool, as_json: bool) -> None:
    """List the installed plugins, commands and prompt lists, from metadata alone.

    With --check each is imported; exit code 1 if one is broken.
    """
    faults = {entry: _listed_fault(entry) for entry in _everything()}
    if check:
        from headwater.examination import fault_of

        faults = {entry: fault or fault_of(entry) for entry, fault in faults.items()}
    rows = [_row(entry, fault) for entry, fault in faults.items()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print(rows)
    if check and any(faults.values()):
        raise SystemExit(1)


def _everything() -> list[Entry]:
    """All offers by kind and name, and the packages whose offers cannot be read."""
    found = []
    for package in packages():
        found += [Entry(*offer, package) for offer in package.offers]
        if package.fault:
            found.append(Entry("package", package.name, "", package))
    places = {kind: place for place, kind in enumerate(GROUPS)}
    return sorted(found, key=lambda e: (places.get(e.kind, len(places)), e.name, e.distribution))


def _listed_fault(entry: Entry) -> str:
    """What is wrong by metadata alone, or an empty text."""
    from headwater.cli import COMMANDS

    if entry.kind == "package":
        return entry.package.fault
    if entry.kind not in GROUPS:
        return f"there is no kind {entry.kind!r}"
    if entry.kind == "command" and entry.name in COMMANDS:
        return "headwater itself has a command of that name"
    return ""


def _row(entry: Entry, fault: str) -> dict[str, str]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "target": entry.target,
        "fault": fault,
    }


def _print(rows: list[dict[str, str]]) -> None:
    if not rows:
        click.echo("no plugin is installed")
    widths = {key: max((len(row[key]) for row in rows), default=0) for key in ("kind", "name")}
    for row in rows:
        line = (
            f"{row['kind']:{widths['kind']}}  {row['name']:{widths['name']}}  "
            f"{row['distribution']} {row['version']}"
        )
        click.echo(line + (f"  BROKEN: {row['fault']}" if row["fault"] else ""))
