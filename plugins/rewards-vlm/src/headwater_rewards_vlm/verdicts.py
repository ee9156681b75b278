"""A judge's words: the template that asks, and the number in the answer."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from headwater_rewards_vlm.service import field

PLACE = "{prompt}"

ASPECTS = {
    "overall": "Final Score",
    "alignment": "Alignment Score (1-5)",
    "coherence": "Coherence Score (1-5)",
    "style": "Style Score (1-5)",
}
"""UnifiedReward's lines: the first of its 1.x templates, the others of 2.0."""


def read_template(name: str, shipped: str) -> str:
    """A template file, or the shipped one where no file is named.

    ValueError where it cannot be read or has no place for the prompt.
    """
    if not name:
        folder = resources.files("headwater_rewards_vlm").joinpath("templates")
        return folder.joinpath(shipped).read_text(encoding="utf-8")
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if PLACE not in text:
        raise ValueError(f"{name} has no {PLACE}, the place of the prompt")
    return text


def said(answer: Any) -> str:
    """The text of an OpenAI-style chat completion. ValueError where there is none."""
    choices = field(answer, "choices", list)
    if len(choices) != 1:
        raise ValueError(f"expected one choice, got {len(choices)}")
    content: str = field(field(choices[0], "message", dict), "content", str)
    if not content.strip():
        why = choices[0].get("finish_reason")
        raise ValueError(f"the judge said nothing (finish_reason {why!r})")
    return content


def labelled_score(text: str, label: str, low: float, high: float) -> float:
    """The number after `label:`, from `low` to `high`.

    Emphasis around it and `/high` behind it are allowed. ValueError where there is no such line,
    where two of them differ, or where the number is outside: a judge that did not judge has given
    no score.
    """
    mark = r"[*_`\"'\s]*"
    pattern = (
        rf"(?<!\w){re.escape(label)}{mark}:{mark}(?:[\[(]\s*)?"
        r"(-?\d+(?:\.\d+)?)(?![A-Za-z\d]|[.,]\d)(?:\s*/\s*(\d+(?:\.\d+)?))?"
    )
    found = re.findall(pattern, text, flags=re.IGNORECASE)
    end = " ".join(text.split())[-120:]
    if not found:
        raise ValueError(f"no {label + ':'!r} with a number; it ends {end!r}")
    if any(whole and float(whole) != high for _, whole in found):
        raise ValueError(f"a {label + ':'!r} is not out of {high:g}; it ends {end!r}")
    values = {float(number) for number, _ in found}
    if len(values) > 1:
        raise ValueError(f"{len(values)} different numbers after {label + ':'!r}")
    (value,) = values
    if not low <= value <= high:
        raise ValueError(f"{label + ':'!r} is {value:g}, expected {low:g} to {high:g}")
    return value
