"""mkdocs' hooks: generated parts, links into the repository, and formulas as MathML."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

sys.path.insert(0, str(Path(__file__).parents[1]))

from sitegen import directives, links


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Generated parts, then links that leave the site."""
    name = page.file.src_uri
    try:
        return links.within_site(directives.expand(markdown, name), name)
    except ValueError as error:
        raise PluginError(str(error)) from error


def on_page_content(html: str, **_: Any) -> str:
    """Formulas become MathML, which browsers draw without a script."""

    def inline(found: re.Match[str]) -> str:
        return str(convert(unescape(found[1])))

    def display(found: re.Match[str]) -> str:
        return f'<p class="formula">{convert(unescape(found[1]), display="block")}</p>'

    html = re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', display, html, flags=re.S)
    return re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', inline, html, flags=re.S)
