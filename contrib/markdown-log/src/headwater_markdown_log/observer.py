"""`RUN.md`: how a run goes, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from headwater import hookimpl

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.define(eq=False)
class MarkdownLog:
    """A page `RUN.md` in the run folder, written anew at every evaluation and at the end."""

    title: str = ""
    """Heading of the page; empty for the run's name."""

    _folder: Path | None = attrs.field(init=False, default=None)
    _head: list[str] = attrs.field(init=False, factory=list)
    _rows: list[dict[str, Any]] = attrs.field(init=False, factory=list)
    """Step, metrics and name of the picture of each evaluation."""
    _skipped: int = attrs.field(init=False, default=0)
    _error: str = attrs.field(init=False, default="")

    @hookimpl
    def start(self, run: Run, folder: Path) -> None:
        """Begin the page, or go on with it."""
        kinds = ("backbone", "algorithm", "estimator", "dynamics")
        used = ", ".join(f"{kind} `{getattr(run, kind).entry.name}`" for kind in kinds)
        self._folder = folder
        self._head = [f"# {plain(self.title or run.file.name)}", "", f"{used}.", ""]
        self._write(f"Running, {run.file.steps} steps.")

    def state(self) -> dict[str, Any]:
        """What the page holds so far."""
        return {"rows": self._rows, "skipped": self._skipped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._rows, self._skipped = list(state["rows"]), int(state["skipped"])

    @hookimpl
    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Count updates that the guard kept out."""
        self._skipped += bool(metrics.get("skipped"))

    @hookimpl
    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], picture: Path | None
    ) -> None:
        """Add a row."""
        name = picture.name if picture is not None else ""
        self._rows.append({"step": step, "metrics": dict(metrics), "picture": name})
        self._write(f"Running, {step} steps done.")

    @hookimpl
    def on_error(self, error: BaseException) -> None:
        """Keep what it says."""
        self._error = f" {type(error).__name__}: {plain(str(error))}"

    @hookimpl
    def finish(self, step: int, reason: str) -> None:
        """Write how it ended."""
        self._write(f"{reason.capitalize()} after {step} steps.{self._error}")

    def _write(self, status: str) -> None:
        """The whole page, or none of it."""
        if self._folder is None:
            return
        skipped = f" Updates skipped: {self._skipped}." if self._skipped else ""
        lines = [*self._head, status + skipped, "", *table(self._rows)]
        partial = self._folder / "RUN.md.partial"
        partial.write_text("\n".join(lines), encoding="utf-8")
        partial.replace(self._folder / "RUN.md")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of a table: a row an evaluation, a column a reward."""
    if not rows:
        return []
    known = rows[-1]["metrics"]
    keys = [name.removeprefix("evaluation/") for name in known if f"{name}_se" in known]
    keys = [key for key in keys if f"evaluation/{key}" in known and key != "total"]
    lines = [f"| step | {' | '.join(map(plain, keys))} | samples |", "|---" * (len(keys) + 2) + "|"]
    for row in rows:
        cells = [cell(row["metrics"], key) for key in keys]
        image = f"![step {row['step']}](samples/{row['picture']})" if row["picture"] else ""
        lines.append(f"| {row['step']} | {' | '.join(cells)} | {image} |")
    return [*lines, ""]


def cell(metrics: Mapping[str, float], key: str) -> str:
    """Mean ± standard error, and the paired change in brackets where there is one."""
    if f"evaluation/{key}" not in metrics:
        return ""
    text = f"{metrics[f'evaluation/{key}']:.4f} ± {metrics[f'evaluation/{key}_se']:.4f}"
    if f"change/{key}" in metrics:
        text += f" ({metrics[f'change/{key}']:+.4f} ± {metrics[f'change/{key}_se']:.4f})"
    return text


def plain(text: str) -> str:
    """One line in which nothing is a column's border."""
    return " ".join(text.split()).replace("|", "\\|")
