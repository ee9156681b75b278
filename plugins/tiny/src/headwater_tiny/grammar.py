"""The closed grammar of the prompts: text to `Scene` and back.

    single_object  a small red circle on a white background
    colors         a red circle on a white background
    counting       three red circles on a white background
    two_object     a small circle and a large square on a white background
    color_attr     a red circle and a blue square on a white background
    position       a red circle at the left of a white background
                   a red circle above a blue square on a white background

The categories are those of GenEval. What a prompt does not state is free: a drawing may choose
it, and the detector does not judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import attrs
import torch
from torch import Generator

T = TypeVar("T")

COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "magenta")
BACKGROUNDS = (
    "white",
    "black",
    "grey",
    "pink",
    "beige",
    "navy",
    "olive",
    "teal",
    "maroon",
    "lavender",
)
SHAPES = ("circle", "square", "triangle")
SIZES = ("small", "large")
COUNTS = {"two": 2, "three": 3}
_NUMBERS = {number: word for word, number in COUNTS.items()}
POSITIONS = ("center", "left", "right", "top", "bottom")
RELATIONS = ("left of", "right of", "above", "below")
CATEGORIES = (
    "single_object",
    "two_object",
    "counting",
    "colors",
    "position",
    "color_attr",
)
VOCABULARY = (
    *("a", "an", "and", "at", "the", "of", "on", "background"),
    *COUNTS,
    *SIZES,
    *COLORS,
    *SHAPES,
    *(shape + "s" for shape in SHAPES),
    *POSITIONS,
    *("above", "below"),
    *BACKGROUNDS,
)
"""Every word of the grammar, in the order of its token ids."""


@attrs.frozen
class Thing:
    """One kind of object; None where the prompt leaves it free."""

    shape: str
    color: str | None = None
    size: str | None = None


@attrs.frozen
class Scene:
    """What a prompt asks for."""

    category: str
    things: tuple[Thing, ...]
    """One, or two."""
    background: str
    count: int = 1
    """How many of a lone thing; 1 where there are two things."""
    position: str | None = None
    """Of a lone thing, in the image."""
    relation: str | None = None
    """Of the first thing to the second."""

    @property
    def objects(self) -> int:
        """How many objects the image holds."""
        return self.count * len(self.things)


def describe(scene: Scene) -> str:
    """The prompt of a scene; `parse` gives the scene back."""
    first = _describe_thing(scene.things[0], scene.count)
    background = _article(f"{scene.background} background")
    tail = f"on {background}"
    if scene.position is not None:
        return f"{first} at the {scene.position} of {background}"
    if len(scene.things) == 1:
        return f"{first} {tail}"
    joint = scene.relation or "and"
    return f"{first} {joint} {_describe_thing(scene.things[1], 1)} {tail}"


def _describe_thing(thing: Thing, count: int) -> str:
    noun = thing.shape if count == 1 else thing.shape + "s"
    phrase = " ".join(word for word in (thing.size, thing.color, noun) if word)
    return _article(phrase) if count == 1 else f"{_NUMBERS[count]} {phrase}"


def _article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def words(text: str) -> list[str]:
    """Split a prompt into known words. ValueError names the first unknown one."""
    found = text.lower().split()
    for word in found:
        if word not in VOCABULARY:
            raise ValueError(f"unknown word {word!r} in prompt {text!r}; the vocabulary is closed")
    return found


def parse(text: str) -> Scene:
    """The scene of a prompt. ValueError where the prompt is not of the grammar."""
    rest = words(text)
    try:
        count, first = _parse_thing(rest)
        position, relation, second = None, None, None
        if rest[:2] == ["at", "the"]:
            position, rest = _one_of(rest[2], POSITIONS), _expect(rest[3:], "of")
        else:
            relation, second = _parse_second(rest)
            rest = _expect(rest, "on")
        background = _one_of(rest[1], BACKGROUNDS)
        if rest[2:] != ["background"]:
            raise ValueError("it does not end in 'background'")
    except (ValueError, IndexError) as error:
        raise ValueError(f"not a prompt of the grammar: {text!r} ({error})") from None
    things = (first,) if second is None else (first, second)
    category = _category(things, count, position, relation)
    scene = Scene(category, things, background, count, position, relation)
    if describe(scene) != " ".join(words(text)):
        raise ValueError(f"not a prompt of the grammar: {text!r}")
    return scene


def _parse_thing(rest: list[str]) -> tuple[int, Thing]:
    """Take one thing and its count off the front of `rest`."""
    article = _one_of(rest.pop(0), ("a", "an", *COUNTS))
    count = COUNTS.get(article, 1)
    size = rest.pop(0) if rest[0] in SIZES else None
    color = rest.pop(0) if rest[0] in COLORS else None
    noun = rest.pop(0)
    shape = noun if count == 1 else noun.removesuffix("s")
    return count, Thing(_one_of(shape, SHAPES), color, size)


def _parse_second(rest: list[str]) -> tuple[str | None, Thing | None]:
    """Take a joining word and the second thing off the front of `rest`, if there is one."""
    if rest[0] == "on":
        return None, None
    joint = rest.pop(0)
    if joint in ("left", "right"):
        joint = f"{joint} {rest.pop(0)}"
    _one_of(joint, ("and", *RELATIONS))
    count, second = _parse_thing(rest)
    if count != 1:
        raise ValueError("a second thing is one object")
    return (None if joint == "and" else joint), second


def _category(
    things: Sequence[Thing], count: int, position: str | None, relation: str | None
) -> str:
    if position or relation:
        return "position"
    if count > 1:
        return "counting"
    if len(things) == 2:
        return "color_attr" if things[0].color else "two_object"
    return "single_object" if things[0].size else "colors"


def _one_of(word: str, choices: Sequence[str]) -> str:
    if word not in choices:
        raise ValueError(f"{word!r} where one of {', '.join(choices)} was expected")
    return word


def _expect(rest: list[str], word: str) -> list[str]:
    _one_of(rest[0], (word,))
    return rest[1:]


class Draws:
    """Uniform choices from one block of random numbers; quicker than a draw each."""

    def __init__(self, generator: Generator, count: int = 24) -> None:
        self.values = iter(torch.rand(count, generator=generator).tolist())

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[int(next(self.values) * len(choices))]

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return bool(next(self.values) < probability)


def sample_scene(generator: Generator, category: str | None = None) -> Scene:
    """Draw a scene; of a uniformly drawn category where none is given."""
    draws = Draws(generator, 12)
    pick = draws.pick
    kind = category or pick(CATEGORIES)
    background, shape, other = pick(BACKGROUNDS), pick(SHAPES), pick(SHAPES)
    color = pick(COLORS)
    different = pick([c for c in COLORS if c != color])
    first, second = Thing(shape, color), Thing(other, different)
    if kind == "single_object":
        return Scene(kind, (Thing(shape, color, pick(SIZES)),), background)
    if kind == "colors":
        return Scene(kind, (first,), background)
    if kind == "counting":
        return Scene(kind, (first,), background, count=COUNTS[pick(tuple(COUNTS))])
    if kind == "two_object":
        unlike = pick([s for s in SHAPES if s != shape])
        sized = (Thing(shape, None, pick(SIZES)), Thing(unlike, None, pick(SIZES)))
        return Scene(kind, sized, background)
    if kind == "color_attr":
        return Scene(kind, (first, second), background)
    if draws.chance(0.5):
        return Scene(kind, (first,), background, position=pick(POSITIONS))
    return Scene(kind, (first, second), background, relation=pick(RELATIONS))
