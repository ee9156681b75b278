"""How a run looks everywhere: a colour, a dash and a marker of its own.

The colours differ for readers with each of the colour deficiencies, keep a contrast of at least 3
with the page, and the first four have four greys; the dash and the marker tell the rest apart.
"""

from __future__ import annotations

import attrs

LIGHT = (
    "#0b5aa8", "#d9480f", "#2b1a4a", "#c76f9f", "#5a6839", "#3697d8", "#4c0000", "#683951",
)  # fmt: skip
"""On white."""
DARK = (
    "#5aa9f5", "#ff7038", "#f5e9a9", "#b565c9", "#7fbf6a", "#c8444f", "#d5dcf7", "#7f8794",
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
