"""One picture for a slide: the curves that matter most, and the table."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from headwater_report import styles
from headwater_report.charts import Chart
from headwater_report.facts import Facts
from headwater_report.panels import sections

_DASHES: dict[str, Any] = {"": "-"}
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
CHARTS = 6
"""Charts on it at most."""
ROWS = 10
"""Rows of its table at most."""


def slide(found: Sequence[Facts]) -> bytes:
    """A PNG of 1760 x 990."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    every = sections([one.record for one in found])
    charts = [chart for section in every for chart in section.charts][:CHARTS]
    figure = plt.figure(figsize=(16, 9), layout="constrained")
    try:
        _draw(figure, charts, found)
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110)
    finally:
        plt.close(figure)
    return data.getvalue()


def _draw(figure: Any, charts: Sequence[Chart], found: Sequence[Facts]) -> None:
    names = [one.name for one in found]
    columns = min(3, max(1, len(charts)))
    rows = -(-len(charts) // columns)
    table = _rows(found)
    heights = [3.0] * rows + [0.5 + 0.32 * (len(table) + 1)]
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=heights)
    for i, chart in enumerate(charts):
        _chart(figure.add_subplot(grid[i // columns, i % columns]), chart)
    axes = figure.add_subplot(grid[rows, :])
    axes.set_axis_off()
    head = ["run", "reward", "before", "after", "difference", "prompts"]
    if table:
        made = axes.table(table, colLabels=head, loc="center", cellLoc="center", edges="horizontal")
        made.auto_set_font_size(value=False)
        made.set_fontsize(12)
        made.scale(1, 1.5)
    else:
        text = "\n".join(one.verdict for one in found)
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=13, wrap=True)
    figure.suptitle(_plain(", ".join(names)), fontsize=17, fontweight="bold")
    if len(names) > 1:
        handles = [_handle(run, name) for run, name in enumerate(names)]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(names)),
                      frameon=False, fontsize=12)  # fmt: skip


def _chart(axes: Any, chart: Chart) -> None:
    for line in chart.lines:
        look = styles.style(line.run)
        colour = styles.LIGHT[look.colour]
        xs, ys = zip(*line.points, strict=True)
        if line.faint:
            axes.plot(*zip(*line.faint, strict=True), color=colour, alpha=0.25, linewidth=0.8)
        if line.errors:
            low = [y - e for y, e in zip(ys, line.errors, strict=True)]
            high = [y + e for y, e in zip(ys, line.errors, strict=True)]
            axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            xs,
            ys,
            color=colour,
            linewidth=2,
            linestyle=_dash(look.dash),
            marker=_MARKERS[look.marker] if line.dots else None,
            markersize=5,
        )
    for event in chart.events:
        if event.y is None:
            axes.axvline(event.x, color="#a4262c", linestyle=":", linewidth=1.2)
        else:
            axes.plot([event.x], [event.y], marker="x", color="#a4262c")
    if chart.log:
        axes.set_yscale("log")
    axes.set_title(_plain(chart.title), fontsize=13, fontweight="bold", loc="left")
    axes.set_xlabel(_plain(chart.x_label))
    axes.set_ylabel(_plain(chart.y_label))
    axes.grid(axis="y", color="#d9dee4")
    axes.spines[["top", "right"]].set_visible(False)


def _handle(run: int, name: str) -> Any:
    from matplotlib.lines import Line2D

    look = styles.style(run)
    return Line2D([], [], color=styles.LIGHT[look.colour], linestyle=_dash(look.dash),
                  marker=_MARKERS[look.marker], label=_plain(name), linewidth=2)  # fmt: skip


def _dash(dash: str) -> Any:
    """SVG's dash pattern in matplotlib's words."""
    return (0, tuple(float(part) / 1.6 for part in dash.split())) if dash else "-"


def _plain(text: str) -> str:
    """matplotlib reads formulas between dollars; a name is none."""
    return text.replace("$", r"\$")


def _rows(found: Sequence[Facts]) -> list[list[str]]:
    out = []
    for one in found:
        for row in one.changes.rows:
            sign = "+" if row.difference.mean > 0 else ""
            out.append(
                [
                    _plain(one.name),
                    _plain(row.key) + (" (held out)" if row.held_out else ""),
                    row.before.text,
                    row.after.text,
                    sign + row.difference.text if math.isfinite(row.difference.mean) else "–",
                    str(row.n) if row.n else "–",
                ]
            )
    return out[:ROWS]
