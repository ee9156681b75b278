"""HTML and SVG text, in which everything that is not markup already is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_EMPTY = {"meta", "img", "br"}
"""Elements of HTML without an end tag."""


class Markup(str):
    """Text that goes into the page as it is."""

    __slots__ = ()


def element(tag: str, /, *parts: str, **attributes: object) -> Markup:
    """`<tag attributes>parts</tag>`; parts are escaped unless they are Markup.

    An underscore in an attribute's name stands for a dash, one at its end for nothing. Attributes
    that are None are left out.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY:
        return Markup(f"<{tag}{shown}>")
    return Markup(f"<{tag}{shown}>{joined(parts)}</{tag}>")


def joined(parts: Sequence[str]) -> Markup:
    """One after the other, escaped unless they are Markup."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))
