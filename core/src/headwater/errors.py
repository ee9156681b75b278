"""Errors that a person reads at the command line, each with its exit code.

They are explained already and are shown without a traceback; everything else escapes with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class HeadwaterError(Exception):
    """Base of the family; exit code 1."""

    exit_code = 1


class InputError(HeadwaterError):
    """The input is wrong; exit code 2. Holds every problem found."""

    exit_code = 2

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{where}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class PluginError(HeadwaterError):
    """A plugin cannot be found, loaded or combined; exit code 2."""

    exit_code = 2


class DamagedError(InputError):
    """A checkpoint is not what was written."""


BLAME = "raised in "
"""Begins the note on an exception that says which plugin it left."""


class OutputError(HeadwaterError):
    """The run folder cannot be written any more, a full disk for instance; exit code 1."""


class GuardError(HeadwaterError):
    """A guard stopped the run; exit code 3."""

    exit_code = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.55)
    return f"; did you mean {close[0]!r}?" if close else ""
