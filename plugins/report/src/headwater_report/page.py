"""The report as one HTML file: no script, no font, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from headwater import __version__
from headwater_report import styles, tables
from headwater_report.charts import Chart, legend, svg, swatch
from headwater_report.facts import Facts, resumed, use, when
from headwater_report.gallery import gallery
from headwater_report.markup import Markup, element, joined
from headwater_report.panels import Section, sections

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The page itself forbids scripts and every request, whatever a run file or a prompt holds."""


def page(found: Sequence[Facts]) -> str:
    """The whole file."""
    title = f"Report: {', '.join(one.name for one in found)}"
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"headwater {__version__}"),
        element("title", title),
        element("style", Markup(stylesheet(len(found)))),
    ]
    parts = [
        ("summary", "", summary(found)),
        ("rewards", "Before and after", tables.rewards(found)),
        ("curves", "Curves", curves(found)),
        ("samples", "Samples", gallery(found)),
        ("settings", "Run file", tables.settings(found)),
        ("cost", "Cost and versions", tables.cost(found)),
    ]
    shown = [(key, text, body) for key, text, body in parts if body]
    links = [element("a", text, href=f"#{key}") for key, text, _ in shown if text]
    top = element("header", element("h1", title), _line(found), element("nav", *links))
    main = [
        element("section", *([element("h2", text)] if text else []), body, id=key)
        for key, text, body in shown
    ]
    body = element("body", top, element("main", *main))
    return f"<!DOCTYPE html>\n{element('html', element('head', *head), body, lang='en')}\n"


def stylesheet(runs: int) -> str:
    """The style sheet with the runs' colours in it."""
    text = (resources.files("headwater_report") / "style.css").read_text(encoding="utf-8")
    for mark, colours in (("/*LIGHT*/", styles.LIGHT), ("/*DARK*/", styles.DARK)):
        text = text.replace(mark, styles.variables(colours))
    used = range(min(runs, len(styles.LIGHT)))
    return text + "".join(f".run-{i} {{ --c: var(--run-{i}); }}\n" for i in used)


def _line(found: Sequence[Facts]) -> Markup:
    newest = max((when(one.record) for one in found), default="")
    count = f"{len(found)} runs" if len(found) > 1 else "One run"
    said = f"{count}; metrics of {newest}" if newest else count
    return element("p", f"{said}; headwater {__version__}", class_="soft")


def summary(found: Sequence[Facts]) -> Markup:
    """A card a run: what it is, where it stands, what came of it."""
    cards = []
    for run, one in enumerate(found):
        record = one.record
        what = f"{use(record, 'estimator')} with {use(record, 'algorithm')} on "
        what += use(record, "backbone")
        parts = [
            element("h3", swatch(run), one.name),
            element("p", what, class_="soft"),
            element("p", element("span", one.status.text, class_=f"pill {one.status.kind}")),
            *([element("p", one.status.detail, class_="soft")] if one.status.detail else []),
            element("p", one.verdict, class_="verdict"),
            *(element("p", text, class_="warning") for text in one.warnings),
            *(element("p", text, class_="soft") for text in record.notes),
        ]
        if record.resumed:
            parts.append(element("p", f"Resumed {resumed(record)}.", class_="soft"))
        if record.planned and one.status.kind != "done":
            share = min(100.0, 100 * record.done / record.planned)
            bar = element("i", style=f"width: {share:.1f}%")
            parts.append(element("div", bar, class_="meter"))
        cards.append(element("article", *parts, class_=f"run run-{styles.style(run).colour}"))
    return element("div", *cards, class_="runs")


def curves(found: Sequence[Facts]) -> Markup:
    """All charts by section, with a legend where runs are overlaid."""
    names = [one.name for one in found]
    every = sections([one.record for one in found])
    return joined([_section(section, names) for section in every])


def _section(section: Section, names: Sequence[str]) -> Markup:
    figures = [_figure(chart) for chart in section.charts]
    parts = [element("h3", section.title)]
    if len(names) > 1 and figures:
        parts.append(legend(list(enumerate(names))))
    if section.note:
        parts.append(element("p", section.note, class_="soft"))
    if figures:
        parts.append(element("div", *figures, class_="charts"))
    return joined(parts)


def _figure(chart: Chart) -> Markup:
    caption = [element("p", chart.caption, class_="soft")] if chart.caption else []
    return element("figure", element("figcaption", chart.title), svg(chart), *caption)
