"""Links, and the site itself."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from docs.site_words import HAND_WRITTEN, ROOT, expanded
from sitegen import directives, links

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_of_the_repository(page):
    inside = page.is_relative_to(ROOT / "docs")
    text = expanded(page.relative_to(ROOT / "docs").as_posix()) if inside else page.read_text()
    for target in LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            assert (page.parent / path).exists(), target


def test_a_link_out_of_the_site_becomes_a_path():
    assert (
        links.within_site("[bench/table.toml](../bench/table.toml)", "x.md") == "`bench/table.toml`"
    )
    assert links.within_site("[lab](lab.md#jagg)", "x.md") == "[lab](lab.md#jagg)"
    with pytest.raises(ValueError, match="does not exist"):
        links.within_site("[gone](../bench/gone.py)", "x.md")


@pytest.mark.parametrize(
    "comment",
    [
        "nothing",
        "settings estimator leapaling",
        "measured estimators.md leapaling",
        "plugins teapots",
        "about estimator",
    ],
)
def test_a_generated_part_that_cannot_be_made_names_its_page(comment):
    with pytest.raises(ValueError, match=r"^page\.md: "):
        directives.expand(f"<!-- generated: {comment} -->", "page.md")


class Loaded(HTMLParser):
    """What a browser fetches with a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        fetched = tag in ("script", "img", "iframe", "source") or (
            tag == "link" and given.get("rel") not in ("canonical", "next", "prev")
        )
        if fetched:
            self.found += [v for v in (given.get("src"), given.get("href")) if v]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = Loaded()
        loaded.feed(text)
        assert not [url for url in loaded.found if re.match(r"(https?:)?//", url)]
        for url in loaded.found:
            assert (
                url.startswith("data:")
                or (page.parent / url.partition("?")[0]).exists()
                or page.name == "404.html"
            )
        assert "<!-- generated" not in text
        assert 'class="arithmatex"' not in text
    styles = "".join(p.read_text(encoding="utf-8") for p in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?https?:", styles)


@pytest.mark.long
def test_formulas_are_drawn_by_the_browser_alone(site):
    source = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]*`", "", source)
    formulas = len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", prose, re.S))
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    assert page.count("<math") == formulas > 20
    assert "$" not in page
