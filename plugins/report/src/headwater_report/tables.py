"""The report's tables. On a narrow page each row becomes a block with its own labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headwater_report.changes import Change
from headwater_report.charts import swatch
from headwater_report.differences import differing
from headwater_report.facts import Facts, resumed
from headwater_report.markup import Markup, element, joined
from headwater_report.styles import style
from headwater_report.ticks import number

Cell = str
_PAIRED = (
    "± is one standard error. The noise is the same before and after, so the difference and its "
    "error are those of pairs. Bold: more than two standard errors."
)
_NOT_PAIRED = (
    "± is one standard error. Differences of runs whose files do not tell of pairs take before and "
    "after as independent, so their error is too wide. Bold: more than two standard errors."
)
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], kind: str = "") -> Markup:
    """A table whose cells carry their column's label, for the narrow form."""
    top = element("thead", element("tr", *(element("th", text, scope="col") for text in head)))
    body = []
    for row in rows:
        cells = [
            element("td", cell, data_label=label if column else None)
            for column, (label, cell) in enumerate(zip(head, row, strict=True))
        ]
        body.append(element("tr", *cells))
    return element("table", top, element("tbody", *body), class_=f"stack {kind}".strip())


def rewards(found: Sequence[Facts]) -> Markup:
    """Before, after and difference of every reward of every run."""
    compared = [one for one in found if one.changes.rows]
    if not compared:
        return joined([element("p", one.verdict) for one in found])
    head = ["Reward", "Before", "After", "Difference", "In standard errors", "Prompts", "Steps"]
    rows: list[Sequence[Cell]] = []
    for run, one in enumerate(found):
        for row in one.changes.rows:
            start = [run_cell(run, one.name)] if len(found) > 1 else []
            rows.append([*start, *_cells(row), f"{one.changes.first} → {one.changes.last}"])
    head = ["Run", *head] if len(found) > 1 else head
    paired = all(one.changes.paired for one in compared)
    said = element("p", _PAIRED if paired else _NOT_PAIRED, class_="soft")
    return joined([table(head, rows, "named" if len(found) > 1 else ""), said])


def run_cell(run: int, name: str) -> Markup:
    """A run's line, marker and name in a table."""
    return element("span", swatch(run), " ", name, class_=f"tagged run-{style(run).colour}")


def run_heading(run: int, name: str) -> Markup:
    """A run's name with its line and marker."""
    inner = [swatch(run), " ", name]
    return element("h3", *inner, class_=f"run-{style(run).colour}")


def _cells(row: Change) -> list[Cell]:
    return [
        row.key + (" (held out)" if row.held_out else ""),
        row.before.text,
        row.after.text,
        _difference(row),
        f"{row.in_se:+.1f}".replace("-", "−") if math.isfinite(row.in_se) else "–",
        str(row.n) if row.n else "–",
    ]


def _difference(row: Change) -> Markup:
    text = row.difference.text
    if row.difference.mean > 0:
        text = f"+{text}"
    kind = {1: "up", -1: "down", 0: None}[row.direction]
    return element("span", text, class_=kind)


def settings(found: Sequence[Facts]) -> Markup:
    """What differs between the run files, and each of them whole."""
    parts: list[str] = []
    if len(found) > 1:
        rows = differing([one.record.table for one in found])
        if rows:
            count = f"{len(rows)} keys differ" if len(rows) > 1 else "One key differs"
            parts.append(element("p", f"{count}; all others are the same in every run."))
            cells = [
                (
                    element("code", key),
                    *(element("code", v) if v is not None else "–" for v in values),
                )
                for key, values in rows.items()
            ]
            parts.append(table(("Key", *(one.name for one in found)), cells, "text"))
        else:
            parts.append(element("p", "The run files are the same."))
    for one in found:
        said = element("summary", f"{one.name}: the resolved run file")
        parts.append(element("details", said, element("pre", one.record.text.strip())))
    return joined(parts)


def cost(found: Sequence[Facts]) -> Markup:
    """A row a run: time, network work and memory; then versions."""
    head = (
        "Run",
        "Steps",
        "Time",
        "A step (median)",
        "Forwards",
        "Backwards",
        "Peak memory",
        "Skipped",
        "Resumed",
    )
    rows = [
        (
            run_cell(run, one.name) if len(found) > 1 else one.name,
            number(one.cost.get("steps"), 7),
            duration(one.cost.get("seconds")),
            duration(one.cost.get("seconds_per_step")),
            count(one.cost.get("forwards")),
            count(one.cost.get("backwards")),
            size(one.cost.get("peak_memory_bytes")),
            count(one.cost.get("skipped")),
            resumed(one.record),
        )
        for run, one in enumerate(found)
    ]
    said = (
        "Forwards and backwards of the network, summed over samples. Peak memory is that of one "
        "backward stage (docs/design-notes.md); it is known once a run has ended. Without a "
        "summary, time is that of the logged steps and evaluations."
    )
    parts = [table(head, rows), element("p", said, class_="soft"), *_versions(found)]
    return joined(parts)


def _versions(found: Sequence[Facts]) -> list[Markup]:
    """Once where all runs have the same; else a table of those that differ too."""
    every = [one.record.versions for one in found]
    if not any(every):
        return [element("p", "Versions are known once a run has a checkpoint or has ended.")]
    parts = []
    rows = differing(every)
    if len(every) > 1 and rows:
        cells = [
            (name, *((value or "–").strip('"') for value in values))
            for name, values in rows.items()
        ]
        parts.append(element("p", "Versions that differ:"))
        parts.append(table(("Package", *(one.name for one in found)), cells, "text"))
    same = {name: value for name, value in every[0].items() if name not in rows}
    if same:
        parts.append(element("p", f"Versions: {_listed(same)}.", class_="soft"))
    return parts


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def count(value: float | None) -> str:
    """A whole number with thin spaces between thousands."""
    return "–" if value is None else f"{value:,.0f}".replace(",", " ")


def size(value: float | None) -> str:
    """Bytes in the unit that suits them."""
    if not value:
        return "–"
    for unit, name in _UNITS:
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} B"
