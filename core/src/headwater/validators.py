"""Validators for the fields of plugin classes, with texts fit for the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Validator = Callable[[Any, Any, Any], None]


def _finite(value: float) -> bool:
    """Neither NaN nor infinite, and small enough for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def from_below(low: float, high: float) -> Validator:
    """A number from `low`, included, to `high`, excluded."""

    def check(_: Any, __: Any, value: float) -> None:
        if not (_finite(value) and low <= value < high):
            raise ValueError(f"expected a number from {low} to below {high}, got {value!r}")

    return check


def each(validator: Validator) -> Validator:
    """Every item of a list."""

    def check(instance: Any, field: Any, values: Any) -> None:
        for value in values:
            validator(instance, field, value)

    return check


def in_range(low: float, high: float) -> Validator:
    """A number from `low` to `high`, both included."""

    def check(_: Any, __: Any, value: float) -> None:
        if not (_finite(value) and low <= value <= high):
            raise ValueError(f"expected a number from {low} to {high}, got {value!r}")

    return check


def at_least(low: float) -> Validator:
    """A number not below `low`."""

    def check(_: Any, __: Any, value: float) -> None:
        if not (_finite(value) and value >= low):
            raise ValueError(f"expected a number of at least {low}, got {value!r}")

    return check


def above(low: float) -> Validator:
    """A number above `low`."""

    def check(_: Any, __: Any, value: float) -> None:
        if not (_finite(value) and value > low):
            raise ValueError(f"expected a number above {low}, got {value!r}")

    return check


def one_of(*choices: object) -> Validator:
    """One of the listed values."""

    def check(_: Any, __: Any, value: object) -> None:
        if value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"expected one of {listed}, got {value!r}")

    return check


def fraction_range() -> Validator:
    """A pair low < high within [0, 1]."""

    def check(_: Any, __: Any, value: Any) -> None:
        low, high = value
        if not 0 <= low < high <= 1:
            raise ValueError(f"expected [low, high] with 0 <= low < high <= 1, got {list(value)!r}")

    return check
