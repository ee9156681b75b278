"""What a run is, where it stands and what it cost, as text and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from headwater.statistics import without_nan
from headwater_report.changes import Change, Changes, changes, verdict
from headwater_report.differences import differing
from headwater_report.reading import Record
from headwater_report.series import column


@attrs.frozen
class Status:
    """Where a run stands."""

    kind: str
    """done, stopped, running or unfinished."""
    text: str
    detail: str = ""
    """A sentence more."""


@attrs.frozen(eq=False)
class Facts:
    """A run as the report tells of it."""

    record: Record
    changes: Changes
    verdict: str
    status: Status
    warnings: Sequence[str]
    cost: Mapping[str, float]
    """Numbers that are known, by name."""

    @property
    def name(self) -> str:
        """What the report calls the run."""
        return self.record.label


def facts(record: Record) -> Facts:
    """All of a run but its curves and pictures."""
    found = changes(record)
    listed = record.summary.get("warnings", ())
    return Facts(
        record=record,
        changes=found,
        verdict=verdict(record, found),
        status=status(record),
        warnings=[str(text) for text in listed] or _warned(record),
        cost=cost(record),
    )


def status(record: Record) -> Status:
    """Done, stopped, running or ended without a summary, and at which step."""
    of = f" of {record.planned}" if record.planned else ""
    if record.summary:
        reason = record.summary.get("stopped")
        if reason:
            return Status("stopped", f"stopped by {reason} at step {record.done}{of}")
        return Status("done", f"done, {record.done} steps")
    if record.held:
        return Status("running", f"going on, step {record.done}{of}")
    where = f"checkpoint at step {record.checkpoint}" if record.checkpoint >= 0 else "no checkpoint"
    return Status(
        "unfinished",
        f"at step {record.done}{of}, without a summary",
        f"It failed, was killed, or runs on another machine; {where}.",
    )


def _warned(record: Record) -> list[str]:
    """Without a summary only the steps of the warnings are known."""
    return [
        f"step {step}: reward hacking, by the run's own rule"
        for step, row in record.evaluations.items()
        if row.get("hacking/warning", 0.0) > 0
    ]


def cost(record: Record) -> dict[str, float]:
    """Seconds, network work and memory; of steps that the metrics hold where no summary tells."""
    summary, steps = record.summary, record.steps
    names = ("seconds", "forwards", "backwards", "peak_memory_bytes", "resident_memory_bytes")
    out: dict[str, float] = {"steps": float(record.done)}
    for name in names:
        value = summary.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            out[name] = float(value)
        elif name in names[:3]:
            known = [y for _, y in column(steps, name) if math.isfinite(y)]
            known += [
                row["seconds"]
                for row in record.evaluations.values()
                if name == "seconds" and math.isfinite(row.get("seconds", math.nan))
            ]
            if known:
                out[name] = math.fsum(known)
    each = [y for _, y in column(steps, "seconds") if math.isfinite(y)]
    if each:
        out["seconds_per_step"] = statistics.median(each)
    for name in ("skipped", "samples_dropped"):
        count = math.fsum(y for _, y in column(steps, name) if math.isfinite(y))
        if steps:
            out[name] = count
    return out


def use(record: Record, kind: str) -> str:
    """Name of the plugin of a kind; a dash where the file does not say."""
    table = record.table.get(kind)
    name = table.get("use") if isinstance(table, Mapping) else None
    return str(name) if name else "–"


def resumed(record: Record) -> str:
    """Whether and where it went on."""
    if record.resumed is None:
        return "not recorded"
    if not record.resumed:
        return "no"
    return f"after step {', '.join(map(str, record.resumed))}"


def when(record: Record) -> str:
    """Date and time of the newest metrics, UTC; empty without any."""
    if not record.written:
        return ""
    return datetime.fromtimestamp(record.written, UTC).strftime("%Y-%m-%d %H:%M UTC")


def titled(records: Sequence[Record]) -> list[Record]:
    """The records with labels of which no two are alike: the folder's where names are."""
    names = [record.name for record in records]
    folders = [record.folder.resolve().name for record in records]
    out = []
    for i, name in enumerate(names):
        if names.count(name) > 1:
            name = folders[i] if folders.count(folders[i]) == 1 else str(records[i].folder)
        out.append(attrs.evolve(records[i], title=name))
    return out


def as_json(found: Sequence[Facts]) -> dict[str, Any]:
    """The report's numbers, ready for JSON: null for what is not known."""
    runs = [_run(one) for one in found]
    tables = [one.record.table for one in found]
    differences = differing(tables) if len(found) > 1 else {}
    record: dict[str, Any] = without_nan({"runs": runs, "differences": differences})
    return record


def _run(one: Facts) -> dict[str, Any]:
    record = one.record
    return {
        "name": one.name,
        "folder": str(record.folder),
        "status": one.status.kind,
        "said": one.status.text,
        "detail": one.status.detail,
        "steps": record.done,
        "planned": record.planned,
        "resumed_after": None if record.resumed is None else list(record.resumed),
        "verdict": one.verdict,
        "compared": {"from": one.changes.first, "to": one.changes.last},
        "rewards": {row.key: _change(row) for row in one.changes.rows if not row.held_out},
        "held_out": {row.key: _change(row) for row in one.changes.rows if row.held_out},
        "cost": dict(one.cost),
        "versions": dict(record.versions),
        "warnings": list(one.warnings),
        "notes": list(record.notes),
    }


def _change(row: Change) -> dict[str, Any]:
    parts = {p: attrs.asdict(getattr(row, p)) for p in ("before", "after", "difference")}
    return {**parts, "n": row.n or None, "paired": row.paired}
