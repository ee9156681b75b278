"""`headwater plugins`."""

from __future__ import annotations

import json

import click


@click.command("plugins")
@click.option("--check", is_flag=True, help="Import each plugin and say which are broken.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(check: bool, as_json: bool) -> None:
    """List the installed plugins, from metadata alone.

    With --check each is imported; exit code 1 if one is broken.
    """
    from headwater.discovery import KINDS, entries

    rows = []
    for entry in (entry for kind in KINDS for entry in entries(kind)):
        row = {
            "kind": entry.kind,
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
            "target": entry.target,
        }
        if check:
            row["fault"] = _fault(entry)
        rows.append(row)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print(rows)
    if any(row.get("fault") for row in rows):
        raise SystemExit(1)


def _fault(entry: object) -> str:
    from headwater.capabilities import undeclared
    from headwater.discovery import Entry, import_class
    from headwater.errors import PluginError

    assert isinstance(entry, Entry)
    try:
        cls = import_class(entry, "this list")
    except PluginError as error:
        return str(error)
    fields = set(getattr(cls, "__annotations__", {}))
    missing = [name for name in undeclared(entry.kind, cls) if name not in fields]
    return f"does not declare {', '.join(missing)}" if missing else ""


def _print(rows: list[dict[str, str]]) -> None:
    if not rows:
        click.echo("no plugin is installed")
    widths = {key: max((len(row[key]) for row in rows), default=0) for key in ("kind", "name")}
    for row in rows:
        line = (
            f"{row['kind']:{widths['kind']}}  {row['name']:{widths['name']}}  "
            f"{row['distribution']} {row['version']}"
        )
        click.echo(line + (f"  BROKEN: {row['fault']}" if row.get("fault") else ""))
