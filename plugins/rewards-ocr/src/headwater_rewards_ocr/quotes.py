"""Which text a prompt asks for: its quoted parts."""

from __future__ import annotations

import re

# A straight mark after a letter or digit opens nothing: it is an apostrophe or an inch. A letter or
# digit is ASCII here, because scripts without spaces put their quotes between letters.
_DOUBLE = re.compile(
    r'(?<![A-Za-z0-9])"([^"“”]*)["”]|[“„”]([^"“”]*)[“”"]|[«»]([^«»]*)[«»]|「([^」]*)」'
)
_APOSTROPHE = r"(?<=[^\W_])['’](?=[^\W_])"
_SINGLE = re.compile(
    rf"(?<![A-Za-z0-9])'((?:[^'‘’]|{_APOSTROPHE})+)'(?![A-Za-z0-9])"
    rf"|‘((?:[^'‘’]|{_APOSTROPHE})+)’"
)


def quoted_parts(prompt: str) -> tuple[str, ...]:
    """Texts between quotation marks, in their order, stripped; those without a character are none.

    Double marks are straight, curly, low, angled or corner brackets. Single marks, straight or
    curly, count only where no part stands between double ones, since they are apostrophes too.
    """
    for pattern in (_DOUBLE, _SINGLE):
        found = (next(filter(None, match.groups()), "") for match in pattern.finditer(prompt))
        parts = tuple(part.strip() for part in found if part.strip())
        if parts:
            return parts
    return ()
