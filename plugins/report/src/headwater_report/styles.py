"""How a run looks everywhere: a colour, a dash and a marker of its own.

The colours are told apart with the common colour deficiencies and keep a contrast of at least 3
with the page; the dash and the marker tell runs apart in grey.
"""

from __future__ import annotations

import attrs

LIGHT = (
    "#0b5aa8", "#c7500a", "#00805f", "#a8327e", "#8a6d00", "#3d8fc4", "#5b4bb5", "#4d4d4d",
)  # fmt: skip
"""On white."""
DARK = (
    "#62aef0", "#f58a4b", "#2fc49a", "#e57fc0", "#e0bc3c", "#9ad4f7", "#ab9df5", "#c2c2c2",
)  # fmt: skip
"""On nearly black."""
DASHES = ("", "7 3", "2 2.5", "9 3 2 3")
MARKERS = ("circle", "square", "triangle", "diamond")
MOST = len(LIGHT) * len(DASHES)
"""Runs that can be told apart."""


@attrs.frozen
class Style:
    """Of the run at a position of a report."""

    colour: int
    """Index of `LIGHT` and `DARK`."""
    dash: str
    """As SVG's `stroke-dasharray`; empty for a solid line."""
    marker: str


def style(position: int) -> Style:
    """Of run `position`, from 0; no two of the first `MOST` are alike."""
    colour = position % len(LIGHT)
    dash = (colour + position // len(LIGHT)) % len(DASHES)
    return Style(colour, DASHES[dash], MARKERS[dash])


def variables(colours: tuple[str, ...]) -> str:
    """CSS custom properties `--run-I`."""
    return " ".join(f"--run-{i}: {colour};" for i, colour in enumerate(colours))
