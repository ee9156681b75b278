"""Charts: where things are drawn, and how runs are told apart."""

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from headwater_report import charts, styles
from headwater_report.charts import Chart, Event, Line, svg
from headwater_report.panels import sections
from headwater_report.reading import read_run
from headwater_report.series import profile_line, smoothed, thinned, training_line, window
from headwater_report.ticks import linear, logarithmic, number, padded, tick_texts


def drawn(*lines, events=(), log=False):
    chart = Chart("title", "optimizer step", "unit", lines, events=events, log=log)
    return ElementTree.fromstring(svg(chart))


def of_class(root, name):
    return [e for e in root.iter() if e.get("class") == name]


def places(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d"))]


def test_points_lie_where_their_values_say():
    points = [(0.0, 1.0), (5.0, 2.0), (10.0, 3.0)]
    (path,) = of_class(drawn(Line(0, "run", points)), "line")
    found = places(path)
    left, right = charts.LEFT, charts.WIDTH - charts.RIGHT
    assert [x for x, _ in found] == pytest.approx([left, (left + right) / 2, right], abs=0.06)
    ys = [y for _, y in found]
    assert ys[0] > ys[1] > ys[2]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.11)  # tenths of a unit


def test_the_logarithm_of_a_value_decides_its_place():
    points = [(0.0, 1.0), (1.0, 10.0), (2.0, 100.0)]
    (path,) = of_class(drawn(Line(0, "run", points), log=True), "line")
    ys = [y for _, y in places(path)]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.11)


def test_a_missing_value_breaks_the_line():
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0), (5, 2.0)]
    (path,) = of_class(drawn(Line(0, "run", points)), "line")
    assert re.findall("[ML]", path.get("d")) == ["M", "L", "M", "L"]


def test_the_band_is_one_standard_error_to_either_side():
    root = drawn(Line(0, "run", [(0.0, 5.0), (1.0, 5.0)], errors=[1.0, 2.0]))
    (band,) = of_class(root, "band")
    ys = [float(pair.split(",")[1]) for pair in band.get("points").split()]
    up, down = ys[:2], ys[:1:-1]
    heights = [low - high for high, low in zip(up, down, strict=True)]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)


@pytest.mark.parametrize(
    "points", [[(1.0, 0.0)], [(3.0, 7.0), (3.0, 7.0)], [(1.0, math.nan)], [(1.0, 1e-300)]]
)
def test_one_point_equal_points_and_none_are_drawn(points):
    for log in (False, True):
        root = drawn(Line(0, "run", points, dots=True), log=log)
        numbers = re.findall(r"-?\d+\.?\d*", ElementTree.tostring(root, "unicode"))
        assert numbers
        assert "nan" not in ElementTree.tostring(root, "unicode")


def test_every_marker_tells_its_numbers():
    line = Line(1, "a <b>", [(0.0, 1.5), (2.0, 2.5)], errors=[0.5, math.nan], dots=True)
    root = drawn(line, events=[Event(1, 2.0, "update skipped", 2.5), Event(1, 1.0, "warning")])
    tips = [title.text for title in root.iter() if title.tag == "title"]
    assert "a <b>: 1.5 ± 0.5, optimizer step 0" in tips
    assert "a <b>: 2.5, optimizer step 2" in tips
    assert {"update skipped", "warning"} <= set(tips)
    assert root.get("role") == "img"
    assert "a <b>: 1.5 at 0, 2.5 at 2." in root.get("aria-label")


def test_ticks_are_round_and_within():
    assert linear(0, 10) == [0, 2, 4, 6, 8, 10]
    assert linear(0.613, 0.722, 5) == pytest.approx([0.62, 0.64, 0.66, 0.68, 0.7, 0.72])
    assert linear(1, 3, whole=True) == [1, 2, 3]
    assert logarithmic(0.5, 300) == [1, 10, 100]
    assert logarithmic(1, 10) == [1, 2, 5, 10]
    for low, high in ((0, 1e-9), (-5, 5), (1e9, 1e9 + 7), (-3e-5, 2e4)):
        found = linear(low, high)
        assert 2 <= len(found) <= 11
        assert all(low - 1e-9 <= v <= high + 1e-9 for v in found)


def test_numbers_are_short():
    assert tick_texts([0.6, 0.65, 0.7]) == ["0.60", "0.65", "0.70"]
    assert tick_texts([-20.0, 0.0, 20.0]) == ["−20", "0", "20"]
    assert number(1e-5) == "1e−5"
    assert number(0.123456) == "0.1235"
    assert number(123456.7) == "123457"
    assert number(math.nan) == number(None) == "–"
    low, high = padded([2.0, 2.0])
    assert low < 2 < high


def test_running_means_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=200)
    size = window(200)
    assert size == 11
    means, errors = smoothed([(float(i), v) for i, v in enumerate(values)])
    assert len(means) == 200
    part = values[100 - 5 : 100 + 6]
    assert means[100][1] == pytest.approx(part.mean())
    assert errors[100] == pytest.approx(part.std(ddof=1) / math.sqrt(11))
    assert means[0][1] == pytest.approx(values[:6].mean())


def test_thinning_keeps_the_extremes():
    values = np.random.default_rng(1).normal(size=5000)
    points = [(float(i), v) for i, v in enumerate(values)]
    found = thinned(points)
    assert len(found) <= 310
    assert max(found, key=lambda p: p[1]) == points[int(values.argmax())]
    assert min(found, key=lambda p: p[1]) == points[int(values.argmin())]
    assert [x for x, _ in found] == sorted(x for x, _ in found)


def test_a_profile_is_a_mean_over_the_steps_that_have_it(written):
    rows = [{"step": 1, "n/0": 1.0, "n/10": 4.0}, {"step": 2, "n/0": 3.0, "n/2": 7.0, "n/x": 9.0}]
    line = profile_line("n/", 0, read_run(written(rows=rows)))
    assert line.points == [(0.0, 2.0), (2.0, 7.0), (10.0, 4.0)]
    assert line.errors[0] == pytest.approx(1.0)  # values 1 and 3
    assert math.isnan(line.errors[1])


def test_skipped_updates_and_warnings_are_marked(written):
    rows = [
        {"step": i, "grad_norm": None if i == 2 else 1.0, "skipped": float(i > 1)}
        for i in (1, 2, 3)
    ]
    rows += [{"step": s, "evaluation/a": 1.0, "hacking/warning": float(s == 3)} for s in (0, 3)]
    found = {c.title: c for s in sections([read_run(written(rows=rows))]) for c in s.charts}
    assert [(e.x, e.y) for e in found["Gradient norm"].events] == [(2.0, 0.0), (3.0, 1.0)]
    assert [(e.x, e.y) for e in found["a, trained"].events] == [(3.0, None)]


def test_every_metric_is_shown_once_or_called_constant(trained):
    record = read_run(trained("plain"))
    found = sections([record])
    shown = [chart.y_label for section in found for chart in section.charts]
    assert len({(c.title, c.y_label) for s in found for c in s.charts}) == len(shown)
    assert found[-1].note.startswith("The same in every step: ")
    assert training_line("loss", 0, record) is not None
    assert any(chart.title == "Gradient by denoising step" for s in found for chart in s.charts)


def linear_rgb(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels])


def contrast(one, other):
    """WCAG 2.1."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear_rgb(c)) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("colours", "page"), [(styles.LIGHT, "#ffffff"), (styles.DARK, "#111418")])
def test_lines_stand_out_from_the_page(colours, page):
    assert min(contrast(colour, page) for colour in colours) >= 3


LMS = np.array([[0.31399022, 0.63951294, 0.04649755], [0.15537241, 0.75789446, 0.08670142],
                [0.01775239, 0.10944209, 0.87256922]])  # fmt: skip
DEFICIENT = {
    "protanopia": [[0, 1.05118294, -0.05116099], [0, 1, 0], [0, 0, 1]],
    "deuteranopia": [[1, 0, 0], [0.9513092, 0, 0.04866992], [0, 0, 1]],
    "tritanopia": [[1, 0, 0], [0, 1, 0], [-0.86744736, 1.86727089, 0]],
}


def lab(rgb):
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
              [0.0193339, 0.1191920, 0.9503041]]  # fmt: skip
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", [*DEFICIENT, "none"])
@pytest.mark.parametrize("colours", [styles.LIGHT, styles.DARK])
def test_colours_differ_for_colour_blind_readers(colours, kind):
    """Simulated in LMS (Viénot, Brettel and Mollon 1999); 10 is a difference seen at a glance."""
    change = np.linalg.inv(LMS) @ np.array(DEFICIENT.get(kind, np.eye(3))) @ LMS
    seen = [lab(change @ linear_rgb(colour)) for colour in colours]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 10


def test_the_first_four_print_in_four_greys():
    lightness = sorted(lab(linear_rgb(colour))[0] for colour in styles.LIGHT[:4])
    assert min(b - a for a, b in itertools.pairwise(lightness)) > 6


def test_no_two_runs_look_alike_in_grey_or_in_colour():
    first = [styles.style(i) for i in range(4)]
    assert len({(s.dash, s.marker) for s in first}) == 4
    assert len({styles.style(i) for i in range(styles.MOST)}) == styles.MOST
