"""How much of a text was rendered: 1 - min(d, len) / len with d the edit distance.

The form of Flow-GRPO's text reward (arXiv 2505.05470): white space is removed, case ignored, and
text that contains the target is right, whatever stands beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import permutations

_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})
MOST_ORDERED = 4
"""Parts whose every order is tried; more of them are expected in the prompt's order."""


def comparable(text: str, *, keep_case: bool = False) -> str:
    """Text without white space, in compatibility forms (NFKC), with straight quotation marks."""
    plain = unicodedata.normalize("NFKC", text).translate(_STRAIGHT)
    plain = "".join(plain.split())
    return plain if keep_case else plain.lower()


def edit_distance(left: str, right: str) -> int:
    """Least number of insertions, deletions and substitutions that turn one into the other."""
    if len(left) < len(right):
        left, right = right, left
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(diagonal + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def accuracy(read: str, target: str, *, surplus: bool = True) -> float:
    """From 0, nothing of the target, to 1. Both are `comparable`; the target is not empty.

    surplus: whether text that contains the target is right, whatever else was read.
    """
    if surplus and target in read:
        return 1.0
    return 1 - min(edit_distance(read, target), len(target)) / len(target)


def accuracy_of_parts(read: str, parts: Sequence[str], *, surplus: bool = True) -> float:
    """The best accuracy over the orders of the parts: a layout may put any of them first."""
    orders = permutations(parts) if 1 < len(parts) <= MOST_ORDERED else [tuple(parts)]
    return max(accuracy(read, "".join(order), surplus=surplus) for order in orders)
