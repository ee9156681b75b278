"""Links of a page to files of the repository that the site does not hold."""

from __future__ import annotations

import posixpath
import re

from sitegen.shipped import DOCS, ROOT

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def within_site(markdown: str, page: str) -> str:
    """Links out of `docs/` become the path as code; ValueError where nothing is there.

    On a code host they are links; the built site stands alone.
    """

    def shown(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if not (ROOT / path).exists():
            raise ValueError(f"{page} links to {target}, which does not exist")
        if path.startswith("docs/") and not path.startswith("docs/sitegen"):
            return found[0]
        same = label.strip("`") == path
        return f"`{path}`" if same else f"{label} (`{path}`)"

    return LINK.sub(shown, markdown)


def pages() -> list[str]:
    """Every page of the site, relative to `docs/`."""
    return sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
