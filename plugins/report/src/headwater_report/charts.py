"""Line charts as inline SVG: pure functions from numbers to text.

A chart is drawn for a column of 340 units, so that its text is as large on a phone as on a desk.
Colours are CSS custom properties of the page, hence one drawing serves light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from headwater_report.markup import Markup, element
from headwater_report.styles import style
from headwater_report.ticks import linear, logarithmic, padded, tick_texts

Point = tuple[float, float]

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 22, 34
TARGETS = 40
"""Places of a long line that show their numbers under the pointer."""


@attrs.frozen(eq=False)
class Line:
    """What one run gives to a chart. Values that are not finite leave a gap."""

    run: int
    """Position of the run in the report."""
    label: str
    points: Sequence[Point]
    errors: Sequence[float] = ()
    """Standard error of each point, drawn as a band; empty for none."""
    faint: Sequence[Point] = ()
    """What the points are means of."""
    dots: bool = False
    """Whether every point gets a marker."""


@attrs.frozen(eq=False)
class Event:
    """Something that happened at one place of a line, or of the whole chart."""

    run: int
    x: float
    text: str
    y: float | None = None
    """None for a line across the chart."""


@attrs.frozen(eq=False)
class Chart:
    """One chart, ready to be drawn."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    caption: str = ""
    events: Sequence[Event] = ()
    log: bool = False
    """Logarithmic y axis; every value must be positive."""


@attrs.frozen(eq=False)
class Axes:
    """From values to places of the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool

    @classmethod
    def of(cls, chart: Chart) -> Axes:
        """Around all that is finite in a chart."""
        xs, ys = [], []
        for line in chart.lines:
            for x, y in (*line.points, *line.faint):
                if math.isfinite(y):
                    xs.append(x)
                    ys.append(y)
            for (_, y), error in zip(line.points, line.errors, strict=False):
                if math.isfinite(y) and math.isfinite(error):
                    ys += [y - error, y + error]
        ys = [y for y in ys if y > 0] if chart.log else ys
        low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        return cls((low, high), padded(ys or [1.0, 2.0], log=chart.log), chart.log)

    def right(self, x: float) -> float:
        """Place of an x value."""
        low, high = self.x
        return round(LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def down(self, y: float) -> float:
        """Place of a y value, within the frame."""
        low, high = self.y
        if self.log:
            y, low, high = (math.log10(max(value, 1e-300)) for value in (y, low, high))
        share = min(1.0, max(0.0, (y - low) / (high - low)))
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def svg(chart: Chart) -> Markup:
    """The chart as an SVG element that scales with its column."""
    axes = Axes.of(chart)
    parts = [_frame(chart, axes)]
    parts += [_band(line, axes) for line in chart.lines]
    parts += [_path(line.faint, axes, line.run, "faint") for line in chart.lines]
    parts += [_path(line.points, axes, line.run, "line") for line in chart.lines]
    parts += [_event(event, axes) for event in chart.events]
    parts += [_targets(line, axes, chart.x_label) for line in chart.lines]
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=described(chart),
        class_="chart",
    )


def described(chart: Chart) -> str:
    """The chart in a sentence a line, for those who do not see it."""
    said = [f"{chart.title}, by {chart.x_label}."]
    for line in chart.lines:
        fine = [(x, y) for x, y in line.points if math.isfinite(y)]
        if fine:
            (x0, y0), (x1, y1) = fine[0], fine[-1]
            said.append(f"{line.label}: {y0:.4g} at {x0:g}, {y1:.4g} at {x1:g}.")
    return " ".join(said)


def swatch(run: int) -> Markup:
    """A run's line and marker, for legends."""
    line = element(
        "line", x1=1, y1=6, x2=27, y2=6, class_="line", stroke_dasharray=style(run).dash or None
    )
    inner = element("g", line, marker(run, 14, 6), class_=f"run-{style(run).colour}")
    return element("svg", inner, viewBox="0 0 28 12", class_="swatch", aria_hidden="true")


def legend(named: Sequence[tuple[int, str]]) -> Markup:
    """Which line is which run: positions and names."""
    items = [element("li", swatch(run), name) for run, name in named]
    return element("ul", *items, class_="legend")


def marker(run: int, x: float, y: float, tip: str = "") -> Markup:
    """A run's marker at a place of the drawing."""
    inside = [element("title", tip)] if tip else []
    kind, r = style(run).marker, 3.2
    if kind == "circle":
        return element("circle", *inside, cx=x, cy=y, r=r, class_="dot")
    corners = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "triangle": [(0, -r * 1.2), (r * 1.15, r), (-r * 1.15, r)],
        "diamond": [(0, -r * 1.35), (r * 1.35, 0), (0, r * 1.35), (-r * 1.35, 0)],
    }[kind]
    places = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return element("polygon", *inside, points=places, class_="dot")


def _frame(chart: Chart, axes: Axes) -> Markup:
    """Grid lines, tick labels and axis labels."""
    y_values = logarithmic(*axes.y) if axes.log else linear(*axes.y, count=5)
    x_values = linear(*axes.x, count=5, whole=True)
    parts = []
    for value, text in zip(y_values, tick_texts(y_values), strict=True):
        y = axes.down(value)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", text, x=LEFT - 5, y=y + 3.5, text_anchor="end"))
    for value in x_values:
        x = axes.right(value)
        place = {"x": x, "y": HEIGHT - BOTTOM + 14, "text_anchor": "middle"}
        parts.append(element("text", f"{value:g}", **place))
        parts.append(
            element("line", x1=x, x2=x, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 3, class_="axis")
        )
    parts.append(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM,
                class_="axis")
    )  # fmt: skip
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts += [
        element("text", chart.y_label, x=4, y=11, class_="label"),
        element("text", chart.x_label, x=middle, y=HEIGHT - 5, text_anchor="middle",
                class_="label"),
    ]  # fmt: skip
    return element("g", *parts, class_="frame")


def _path(points: Sequence[Point], axes: Axes, run: int, kind: str) -> Markup:
    """A line that is broken where a value is missing."""
    text, pen = [], "M"
    for x, y in points:
        if math.isfinite(y) and (y > 0 or not axes.log):
            text.append(f"{pen}{axes.right(x)} {axes.down(y)}")
            pen = "L"
        else:
            pen = "M"
    if not text:
        return Markup()
    dash = style(run).dash if kind == "line" else ""
    path = element("path", d="".join(text), class_=kind, stroke_dasharray=dash or None)
    return element("g", path, class_=f"run-{style(run).colour}")


def _band(line: Line, axes: Axes) -> Markup:
    """One standard error to either side."""
    rows = [
        (axes.right(x), axes.down(y + error), axes.down(y - error))
        for (x, y), error in zip(line.points, line.errors, strict=False)
        if math.isfinite(y) and math.isfinite(error)
    ]
    if len(rows) < 2:
        return Markup()
    edge = [f"{x},{up}" for x, up, _ in rows] + [f"{x},{low}" for x, _, low in reversed(rows)]
    shape = element("polygon", points=" ".join(edge), class_="band")
    return element("g", shape, class_=f"run-{style(line.run).colour}")


def _event(event: Event, axes: Axes) -> Markup:
    """A cross on a line, or a dashed line across the chart."""
    x, title = axes.right(event.x), element("title", event.text)
    if event.y is None:
        shape = element("line", title, x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="warned")
    else:
        y = axes.down(event.y)
        cross = f"M{x - 4} {y - 4}L{x + 4} {y + 4}M{x - 4} {y + 4}L{x + 4} {y - 4}"
        shape = element("path", title, d=cross, class_="skipped")
    return element("g", shape, class_=f"run-{style(event.run).colour}")


def _targets(line: Line, axes: Axes, x_label: str) -> Markup:
    """Markers, or unseen places of a long line, that show their numbers under the pointer."""
    every = 1 if line.dots else max(1, len(line.points) // TARGETS)
    parts = []
    for position, (x, y) in list(enumerate(line.points))[::every]:
        if not math.isfinite(y) or (axes.log and y <= 0):
            continue
        error = line.errors[position] if position < len(line.errors) else math.nan
        spread = f" ± {error:.3g}" if math.isfinite(error) else ""
        tip = f"{line.label}: {y:.5g}{spread}, {x_label} {x:g}"
        where = axes.right(x), axes.down(y)
        if line.dots:
            if spread:
                low, high = axes.down(y - error), axes.down(y + error)
                parts.append(element("line", x1=where[0], x2=where[0], y1=low, y2=high,
                                     class_="whisker"))  # fmt: skip
            parts.append(marker(line.run, *where, tip))
        else:
            circle = element("circle", element("title", tip), cx=where[0], cy=where[1], r=6,
                             class_="target")  # fmt: skip
            parts.append(circle)
    return element("g", *parts, class_=f"run-{style(line.run).colour}")
