"""The page: escaped, self-contained, written whole or not at all, readable as HTML."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from PIL import Image

from headwater.cli import main
from headwater_report.markup import Markup, element
from headwater_report.pictures import SIDE, data_uri


class Tree(HTMLParser):
    """Elements with their attributes and text, and whether all of them are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def report(*arguments, code=0):
    done = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def page(trained, tmp_path):
    """Tree of the report of two runs."""
    folders = trained("plain"), trained("faster", "optimizer.lr=0.05", "steps=2")
    report(*folders, "--out", tmp_path / "page.html")
    return Tree((tmp_path / "page.html").read_text())


def test_a_prompt_is_text_and_never_markup(page):
    assert not page.open, "every element is closed"
    assert not [e for e in page.elements if e[0] in ("script", "iframe", "object", "link", "base")]
    assert '<script>document.title = "taken"</script>' in page.text
    assert any("<script>document" in a.get("alt", "") for t, a in page.elements if t == "img")
    assert not [a for _, a in page.elements if any(key.startswith("on") for key in a)]


def test_a_run_file_and_a_folder_are_text(written, tmp_path):
    toml = 'name = "x"\nsteps = 1\n[reward.a]\nuse = "</pre></style><script>"\n[b]\n"<i>" = 1\n'
    one = written("<b>one & two", toml=toml, rows=[{"step": 1, "<u>": 2.0, "loss": 1.0}])
    two = written("two", rows=[{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}])
    report(one, two, "--out", tmp_path / "page.html")
    tree = Tree((tmp_path / "page.html").read_text())
    assert not tree.open
    assert not [tag for tag, _ in tree.elements if tag in ("script", "b", "u")]
    assert any("</pre></style><script>" in text for text in tree.text)
    assert "b.<i>" in tree.text


def test_nothing_is_fetched(page):
    for _, attributes in page.elements:
        for key in ("src", "href", "srcset", "poster", "data", "action"):
            value = attributes.get(key) or "#"
            assert value.startswith(("#", "data:image/png;base64,", "data:image/jpeg;base64,"))
    style = next(text for text in page.text if "--page" in text)
    assert "url(" not in style
    assert "@import" not in style
    policy = [a for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0]["content"].startswith("default-src 'none'")


def test_links_of_the_page_lead_somewhere(page):
    ids = {a["id"] for _, a in page.elements if "id" in a}
    links = [a["href"] for t, a in page.elements if t == "a"]
    assert links
    assert {link.removeprefix("#") for link in links} <= ids


def test_what_differs_is_listed_with_both_values(page):
    shown = page.text
    assert "2 keys differ" in " ".join(shown)  # the learning rate, the steps, and nothing else
    for key in ("optimizer.lr", "steps"):
        assert key in shown
    assert {"0.01", "0.05"} <= set(shown)


def test_a_picture_holds_the_pixels_of_the_evaluation(page, trained):
    from headwater_report.reading import read_run

    pair = read_run(trained("plain")).pair
    images = [a["src"] for t, a in page.elements if t == "img"]
    assert len(images) == 3 * 3  # three prompts: before, after in either run
    picture = Image.open(io.BytesIO(base64.b64decode(images[0].partition(",")[2])))
    pixels = (pair.first.images[0] * 255).round().permute(1, 2, 0).int().flatten().tolist()
    assert [v for pixel in picture.get_flattened_data() for v in pixel] == pixels


def test_a_large_picture_is_reduced():
    noise = Image.effect_noise((1024, 768), 80).convert("RGB")
    uri = data_uri(noise)
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert picture.size == (SIDE, SIDE * 3 // 4)
    assert len(uri) < 80_000


def test_without_samples_in_a_checkpoint_the_sheets_are_shown(trained, tmp_path):
    folder = shutil.copytree(trained("plain"), tmp_path / "copy")
    shutil.rmtree(folder / "checkpoints")
    report(folder)
    tree = Tree((folder / "report.html").read_text())
    assert [a["alt"] for t, a in tree.elements if t == "img"] == [
        "toy: samples, before and after, side by side"
    ]
    (folder / "summary.json").unlink()
    (folder / "samples" / "step-000004.png").write_bytes(b"\x89PNG half")
    report(folder)
    tree = Tree((folder / "report.html").read_text())
    assert [a["alt"] for t, a in tree.elements if t == "img"] == ["toy: samples, step 0"]


def test_a_page_is_written_whole_or_not_at_all(trained, tmp_path):
    # Its temporary name is longer than a file system takes, so the write fails.
    path = tmp_path / ("n" * 248 + ".html")
    path.write_text("older")
    said = report(trained("plain"), "--out", path, code=1)
    assert "cannot be written" in said
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_folder_gives_the_same_page(trained, tmp_path):
    for name in ("a.html", "b.html"):
        report(trained("plain"), "--out", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "page.txt"], "expected a .html or .htm file"),
        (["--png", "page.jpg"], "expected a .png file"),
        (["--out", "none/page.html"], "no such folder"),
    ],
)
def test_wrong_targets_are_refused(trained, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in report(trained("plain"), *options, code=2)
    assert not list(tmp_path.iterdir())


def test_a_run_named_twice_and_too_many_runs_are_refused(trained):
    folder = trained("plain")
    assert "named twice" in report(folder, f"{folder}/.", code=2)
    assert "at most 32 runs" in report(*[f"none-{i}" for i in range(33)], code=2)


def test_the_slide_is_a_picture_and_alone_writes_no_page(trained, written, tmp_path):
    target = tmp_path / "slide.png"
    report(trained("plain"), written(toml='name = "a$b_"\n'), "--png", target)
    with Image.open(target) as picture:
        assert picture.size == (1760, 990)
    assert not (trained("plain") / "report.html").exists()


def test_only_markup_is_left_as_it_is():
    made = element("p", "<&>", Markup("<b>x</b>"), data_label='"', hidden=None, class_="c")
    assert made == '<p data-label="&quot;" class="c">&lt;&amp;&gt;<b>x</b></p>'
    assert re.fullmatch(r"<img src=\"a\">", element("img", src="a"))
