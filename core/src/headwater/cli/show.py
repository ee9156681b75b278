"""`headwater show`."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click


@click.command("show")
@click.argument("kind")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(kind: str, name: str, as_json: bool) -> None:
    """Show a plugin's options, defaults, documentation, paper and metrics."""
    from headwater.discovery import find, import_class
    from headwater.errors import InputError, did_you_mean
    from headwater.installed import KINDS

    if kind not in KINDS:
        raise InputError(
            "show", [f"no kind {kind!r}; {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"]
        )
    entry = find(kind, name)
    cls = import_class(entry)
    found: dict[str, Any] = {
        "kind": kind,
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "paper": getattr(cls, "paper", ""),
        "description": inspect.getdoc(cls) or "",
        "options": _options(cls),
        "choices": dict(getattr(cls, "choices", {})),
        "metrics": dict(getattr(cls, "metrics", {})),
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"{entry.name} ({kind}), {entry.distribution} {entry.version}")
    if found["paper"]:
        click.echo(found["paper"])
    click.echo(f"\n{found['description']}\n")
    for option in found["options"]:
        default = "required" if option["default"] is None else f"default {option['default']!r}"
        click.echo(f"{option['name']}: {option['type']}, {default}")
        if option["doc"]:
            click.echo(f"    {option['doc']}")
    for heading in ("choices", "metrics"):
        if found[heading]:
            click.echo(f"\n{heading}:")
            click.echo("\n".join(f"  {name}: {text}" for name, text in found[heading].items()))


def _options(cls: type) -> list[dict[str, Any]]:
    import attrs

    from headwater.settings import expected, field_docs, settings_of, unstructure

    docs = field_docs(cls)
    out = []
    for field in settings_of(cls):
        default = field.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory() if not default.takes_self else "computed"  # type: ignore[union-attr]
        if attrs.has(type(default)):
            default = unstructure(default)
        if default is attrs.NOTHING:
            default = None
        out.append(
            {
                "name": field.name,
                "type": expected(field.type),
                "default": default,
                "doc": docs.get(field.name, ""),
            }
        )
    return out
