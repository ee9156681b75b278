"""Samples side by side: before, and after in every run that drew from the same noise."""

from __future__ import annotations

from collections.abc import Sequence

from headwater_report.charts import legend, swatch
from headwater_report.facts import Facts
from headwater_report.markup import Markup, element, joined
from headwater_report.pictures import Sample, samples, sheets
from headwater_report.styles import style
from headwater_report.tables import run_heading
from headwater_report.ticks import number

Drawn = tuple[int, str, list[Sample]]
"""Position of a run, its name, its samples."""


def gallery(found: Sequence[Facts]) -> Markup:
    """All samples; runs with the same prompts and the same pictures before share a grid."""
    drawn: list[Drawn] = []
    parts: list[str] = []
    for run, one in enumerate(found):
        pictures = samples(one.record)
        if pictures:
            drawn.append((run, one.name, pictures))
    for group in _alike(drawn):
        parts += _grid(group, found, several=len(found) > 1)
    shown = {run for run, _, _ in drawn}
    for run, one in enumerate(found):
        if run not in shown:
            parts += _sheets(run, one, several=len(found) > 1)
    return joined(parts)


def _alike(drawn: Sequence[Drawn]) -> list[list[Drawn]]:
    """Runs whose samples before training are the same, together."""
    groups: dict[tuple[tuple[str, str], ...], list[Drawn]] = {}
    for one in drawn:
        key = tuple((sample.prompt, sample.before) for sample in one[2])
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _grid(group: Sequence[Drawn], found: Sequence[Facts], *, several: bool) -> list[Markup]:
    """Every prompt: before, then after in each run."""
    steps = {found[run].record.pair.step for run, _, _ in group}  # type: ignore[union-attr]
    said = f"after step {steps.pop()}" if len(steps) == 1 else "after the newest evaluation"
    intro = f"The same noise before training and {said}."
    parts = [legend([(run, name) for run, name, _ in group])] if several else []
    columns = 1 + len(group)
    figures = [_figure([(run, drawn[i]) for run, _, drawn in group], several=several)
               for i in range(len(group[0][2]))]  # fmt: skip
    wide = min(900, 110 * columns)
    grid = element(
        "div", *figures, class_="samples", style=f"--wide: {wide}px; --columns: {columns}"
    )
    return [*parts, element("p", intro, class_="soft"), grid]


def _figure(row: Sequence[tuple[int, Sample]], *, several: bool) -> Markup:
    first = row[0][1]
    cells = [_cell("before", first.before, first)]
    for run, sample in row:
        label = swatch(run) if several else "after"
        cells.append(_cell(label, sample.after, sample, run))
    scores = [_scores(run, sample, several=several) for run, sample in row if sample.scores]
    caption = element("figcaption", first.prompt or "(prompt not known)", *scores)
    return element("figure", element("div", *cells, class_="pair"), caption)


def _cell(label: str, uri: str, sample: Sample, run: int | None = None) -> Markup:
    text = f"{'before' if run is None else 'after'}: {sample.prompt}"
    look = "pixelated" if sample.pixelated else None
    kind = None if run is None else f"run-{style(run).colour}"
    return element("div", element("img", src=uri, alt=text, class_=look), label, class_=kind)


def _scores(run: int, sample: Sample, *, several: bool) -> Markup:
    said = ", ".join(f"{key} {number(a, 3)} → {number(b, 3)}" for key, a, b in sample.scores)
    mark = [swatch(run), " "] if several else []
    return element("small", *mark, said, class_=f"run-{style(run).colour}")


def _sheets(run: int, one: Facts, *, several: bool) -> list[Markup]:
    """Whole sample sheets, for a run without samples in a checkpoint."""
    found = sheets(one.record)
    parts: list[Markup] = [run_heading(run, one.name)] if several and found else []
    for uri, said in found:
        parts.append(element("p", f"Samples, {said}.", class_="soft"))
        parts.append(element("img", src=uri, alt=f"{one.name}: samples, {said}", class_="sheet"))
    prompts = list(one.record.prompts)
    if found and prompts:
        items = [element("li", text) for text in prompts[:16]]
        said = element("summary", "The first prompts of the evaluation")
        parts.append(element("details", said, element("ol", *items)))
    return parts
