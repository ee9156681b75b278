"""Before and after: every reward's change, and what it comes to in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from headwater.statistics import compared
from headwater_report.reading import Record

CLEAR = 2.0
"""A change of more than so many standard errors counts as one."""


@attrs.frozen
class Value:
    """A mean and its standard error; NaN where there is none."""

    mean: float
    se: float

    @property
    def text(self) -> str:
        """Mean ± standard error, to two digits of the error; a dash for nothing."""
        if not math.isfinite(self.mean):
            return "–"
        known = math.isfinite(self.se) and self.se > 0
        places = min(8, max(0, 1 - math.floor(math.log10(self.se)))) if known else 4
        text = f"{self.mean:.{places}f}" + (
            f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{self.se:.{places}f}" if known else ""
        )
        return text.replace("-", "−")


@attrs.frozen
class Change:
    """One reward of one run."""

    key: str
    held_out: bool
    before: Value
    after: Value
    difference: Value
    n: int
    """Prompts; 0 where it is not known."""
    paired: bool
    """Whether the difference's error is that of pairs of the same noise."""

    @property
    def in_se(self) -> float:
        """The difference over its standard error; NaN without one."""
        se = self.difference.se
        return self.difference.mean / se if se > 0 else math.nan

    @property
    def direction(self) -> int:
        """1 for a clear rise, -1 for a clear fall, else 0."""
        if not abs(self.in_se) > CLEAR:
            return 0
        return 1 if self.difference.mean > 0 else -1


@attrs.frozen(eq=False)
class Changes:
    """All rewards of a run, and between which steps."""

    rows: Sequence[Change]
    first: int
    last: int

    @property
    def paired(self) -> bool:
        """Whether the differences are those of pairs."""
        return all(row.paired for row in self.rows)


def changes(record: Record) -> Changes:
    """From the summary; else from the checkpoint's evaluations, if they are the newest; else from
    the metrics."""
    summary, pair = record.summary, record.pair
    if summary:
        tables = {**_tables(summary, "rewards"), **_tables(summary, "held_out")}
        if len(_tables(summary, "rewards")) > 1:
            tables["total"] = summary.get("reward")
        return Changes(_rows(record, tables), 0, _whole(summary.get("evaluated_at")))
    newest = max(record.evaluations, default=0)
    if pair is not None and pair.step >= newest:
        one, other = pair.first, pair.last
        tables = {
            key: compared(one.scores[key], other.scores[key])
            for key in one.scores
            if len(one.scores[key]) == len(other.scores.get(key, ()))
        }
        if len(record.trained) > 1 and len(one.total) == len(other.total):
            tables["total"] = compared(one.total, other.total)
        return Changes(_rows(record, tables), 0, pair.step)
    return _from_metrics(record)


def _tables(summary: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = summary.get(key)
    return dict(found) if isinstance(found, Mapping) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _rows(record: Record, tables: Mapping[str, Any]) -> list[Change]:
    rows = []
    for key, table in tables.items():
        parts = [table.get(part) for part in ("before", "after", "difference")] if table else []
        if not parts or not all(isinstance(part, Mapping) for part in parts):
            continue
        before, after, difference = (Value(_float(p, "mean"), _float(p, "se")) for p in parts)
        n = _whole(parts[0].get("n"))
        held_out = key in record.held_out and key not in record.trained
        rows.append(Change(key, held_out, before, after, difference, n, paired=True))
    return _ordered(record, rows)


def _float(part: Mapping[str, Any], key: str) -> float:
    value = part.get(key)
    return float(value) if isinstance(value, int | float) else math.nan


def _from_metrics(record: Record) -> Changes:
    """First and last line of an evaluation; as if their samples were independent, where no line
    tells of pairs."""
    if len(record.evaluations) < 2:
        return Changes((), 0, 0)
    first, last = min(record.evaluations), max(record.evaluations)
    one, other = record.evaluations[first], record.evaluations[last]
    total = ["total"] if len(record.trained) > 1 else []
    rows = []
    for key in [*record.trained, *record.held_out, *total]:
        if key not in one or key not in other:
            continue
        before, after = (Value(r[key], r.get(f"{key}_se", math.nan)) for r in (one, other))
        change = Value(after.mean - before.mean, math.hypot(before.se, after.se))
        paired = first == 0 and f"change/{key}_se" in other
        if paired:
            change = Value(other.get(f"change/{key}", math.nan), other[f"change/{key}_se"])
        held_out, n = key in record.held_out, len(record.prompts)
        rows.append(Change(key, held_out, before, after, change, n, paired=paired))
    return Changes(_ordered(record, rows), first, last)


def _ordered(record: Record, rows: Sequence[Change]) -> list[Change]:
    """Trained ones, their total, held-out ones, each as the run file lists them."""
    order = [*record.trained, "total", *record.held_out]
    return sorted(rows, key=lambda r: order.index(r.key) if r.key in order else len(order))


def verdict(record: Record, found: Changes) -> str:
    """What the changes come to, in a sentence or two."""
    if not found.rows:
        return _nothing(record)
    trained = [row for row in found.rows if not row.held_out and row.key != "total"]
    judges = [row for row in found.rows if row.held_out]
    said = _list(trained, "trained") or "No trained reward was evaluated"
    if judges:
        said += f"; {_list(judges, 'held-out')}"
    rose = any(row.direction > 0 for row in trained)
    fell = any(row.direction < 0 for row in judges)
    end = " A trained reward rose while a held-out one fell: this is how reward hacking looks."
    return f"{said[0].upper()}{said[1:]}.{end if rose and fell else ''}"


def _nothing(record: Record) -> str:
    if record.evaluations:
        return f"Evaluated once, at step {min(record.evaluations)}: nothing to compare yet."
    evaluation = record.table.get("evaluation")
    asked = isinstance(evaluation, Mapping) and evaluation.get("prompts")
    if asked:
        return "Nothing was evaluated yet, so before and after cannot be compared."
    return "The run has no evaluation, so before and after cannot be compared."


def _list(rows: Sequence[Change], kind: str) -> str:
    if not rows:
        return ""
    parts = [_said(row) for row in rows]
    start = f"the {kind} reward" if len(rows) == 1 else f"the {kind} rewards:"
    return f"{start} {', '.join(parts)}"


def _said(row: Change) -> str:
    mean, se = row.difference.mean, row.difference.se
    if not math.isfinite(mean):
        return f"{row.key} is not known (a score is not finite)"
    size = Value(abs(mean), se).text
    times = f" ({abs(row.in_se):.1f} standard errors)" if math.isfinite(row.in_se) else ""
    if row.direction:
        return f"{row.key} {'rose' if mean > 0 else 'fell'} by {size}{times}"
    if mean == 0:
        return f"{row.key} did not change"
    sign = "+" if mean > 0 else "−"
    return f"{row.key} did not change clearly, {sign}{size}{times}"
