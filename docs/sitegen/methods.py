"""What method pages and the chooser take from plugin metadata and from the measured tables."""

from __future__ import annotations

import re

from sitegen import shipped, text
from sitegen.settings_tables import metrics

CHOICES = ("endpoint", "active", "weights", "coupling")


def choices(upstream: str) -> str:
    """The four design choices of every estimator with this upstream, from their classes."""
    rows = []
    for entry in shipped.plugins("estimator"):
        cls = shipped.plugin("estimator", entry.name)[1]
        if cls.upstream != upstream:  # type: ignore[attr-defined]
            continue
        declared = getattr(cls, "choices", dict.fromkeys(CHOICES, "not declared"))
        if tuple(declared) != CHOICES:
            raise ValueError(f"estimator {entry.name}: choices are {', '.join(CHOICES)}")
        rows.append([linked(entry.name), *(text.escaped(declared[key]) for key in CHOICES)])
    if not rows:
        raise ValueError(f"no estimator has the upstream {upstream!r}")
    return text.table(("estimator", *CHOICES), rows)


def linked(name: str) -> str:
    """An estimator's name, linked to its page."""
    page = f"methods/{name}.md"
    own = (shipped.DOCS / page).is_file()
    return f"[`{name}`]({page})" if own else f"[`{name}`](methods/contrib.md#{name})"


def logged(kind: str, name: str) -> str:
    """The metrics of a method, with the prefix under which they are logged."""
    cls = shipped.plugin(kind, name)[1]
    found = metrics(cls)
    if not found:
        return f"`{name}` declares no metric of its own."
    return f"Logged as `{kind}/NAME`:\n\n{found}"


def without_page(kind: str) -> list[str]:
    """Shipped plugins of a kind that no method page asks the settings of."""
    asked = " ".join(
        page.read_text(encoding="utf-8") for page in (shipped.DOCS / "methods").glob("*.md")
    )
    return [
        entry.name
        for entry in shipped.plugins(kind)
        if f"<!-- generated: settings {kind} {entry.name} -->" not in asked
    ]


def measured(page: str, *names: str) -> str:
    """Rows of the first table of a page whose first column holds all `names`, with its head."""
    source = (shipped.DOCS / page).read_text(encoding="utf-8")
    for lines in tables_of(source):
        head, body = cells(lines[0]), [cells(line) for line in lines[2:]]
        found = {row[0].strip("`").strip(): row for row in body}
        if all(name in found for name in names):
            return text.table(head, [found[name] for name in names]).replace(" ± ", "\u00a0±\u00a0")
    raise ValueError(f"no table of docs/{page} has the rows {', '.join(names)}")


def tables_of(source: str) -> list[list[str]]:
    """The Markdown tables of a page, as lists of lines."""
    found = re.findall(r"(?:^\|.*\|[ ]*\n)+", source + "\n", re.M)
    return [block.splitlines() for block in found if len(block.splitlines()) > 2]


def cells(line: str) -> list[str]:
    """Cells of a table row; a bar behind a backslash or within code is text."""
    parts: list[str] = [""]
    code = escaped = False
    for character in line.strip().strip("|"):
        code ^= character == "`"
        if character == "|" and not escaped and not code:
            parts.append("")
        else:
            parts[-1] += character
        escaped = character == "\\"
    return [part.strip() for part in parts]
