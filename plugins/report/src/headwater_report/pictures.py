"""Samples before and after training, as data URIs of a size that a page shows."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path

import attrs
from PIL import Image

from headwater.images import to_pixels
from headwater_report.reading import Record

SIDE = 256
"""Longest side of a sample on the page, in pixels; larger ones are reduced."""
SMALL = 128
"""Up to this side samples are kept as they are and enlarged by the page."""
SHEET = 1200
"""Longest side of a whole sample sheet."""


@attrs.frozen(eq=False)
class Sample:
    """One prompt: what the model drew from the same noise before and after."""

    prompt: str
    """Empty where it is not known."""
    before: str
    """Data URI."""
    after: str
    scores: Sequence[tuple[str, float, float]]
    """Reward key, score before, score after."""
    pixelated: bool
    """Whether the page should enlarge it without smoothing."""


def samples(record: Record) -> list[Sample]:
    """Of the checkpoint's evaluations; empty where it holds none."""
    pair = record.pair
    if pair is None:
        return []
    out = []
    for i in range(min(len(pair.first.images), len(pair.last.images))):
        before, after = (to_pixels(found.images[i]) for found in (pair.first, pair.last))
        scores = [
            (key, values[i], pair.last.scores[key][i])
            for key, values in pair.first.scores.items()
            if i < len(values) and i < len(pair.last.scores.get(key, ()))
        ]
        prompt = record.prompts[i] if i < len(record.prompts) else ""
        small = max(before.size) <= SMALL
        out.append(Sample(prompt, data_uri(before), data_uri(after), scores, small))
    return out


def data_uri(picture: Image.Image, side: int = SIDE) -> str:
    """PNG of a small picture, else JPEG of one reduced to `side`."""
    data = io.BytesIO()
    if max(picture.size) <= SMALL:
        picture.save(data, "PNG", optimize=True)
        kind = "png"
    else:
        reduced = picture.convert("RGB")
        reduced.thumbnail((side, side), Image.Resampling.LANCZOS)
        reduced.save(data, "JPEG", quality=86, optimize=True)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def sheets(record: Record) -> list[tuple[str, str]]:
    """Whole sample sheets and what each is, for a run whose checkpoint holds no samples."""
    folder = record.folder / "samples"
    steps = sorted(
        (path for path in folder.glob("step-*.png") if re.fullmatch(r"step-\d+", path.stem)),
        key=lambda path: int(path.stem.removeprefix("step-")),
    )
    chosen = [(p, f"step {int(p.stem.removeprefix('step-'))}") for p in steps]
    if len(chosen) > 2:
        chosen = [chosen[0], chosen[-1]]
    pairs = folder / "before_after.png"
    if pairs.is_file() and record.summary:
        chosen = [(pairs, "before and after, side by side")]
    return [(uri, said) for path, said in chosen if (uri := _sheet(path))]


def _sheet(path: Path) -> str:
    """Empty for a picture that is not whole, being written for instance."""
    try:
        with Image.open(path) as picture:
            picture.load()
            return data_uri(picture, SHEET)
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return ""
