"""The page in headless Chromium at the width of a phone and of a desk."""

import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from PIL import Image

from headwater.cli import main

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")

MEASURE = """<!DOCTYPE html><meta charset=utf-8><title>measure</title>
<iframe id=f src="PAGE" style="width:WIDTHpx;height:900px;border:0"></iframe><script>
onload = () => {
  const page = document.getElementById("f").contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll("body *")].filter(e => {
    const inner = e.closest("pre") && e.tagName !== "PRE";
    return !inner && e.getBoundingClientRect().right > root.clientWidth + 1;
  });
  const small = [...page.querySelectorAll("svg.chart text")].map(
    e => e.getBoundingClientRect().height);
  document.body.textContent = JSON.stringify({
    title: page.title, client: root.clientWidth, scroll: root.scrollWidth,
    wide: wide.map(e => e.outerHTML.slice(0, 80)), charts: page.querySelectorAll(".chart").length,
    least: Math.min(...small), images: [...page.images].every(i => i.naturalWidth > 0),
  });
};
</script>"""


class Server(ThreadingHTTPServer):
    """Serves files from memory and keeps what is asked for."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked = files, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        body = self.server.files.get(self.path.lstrip("/"))
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory):
    """The page of three runs, of which one has little and one a long name and a long prompt."""
    folder = tmp_path_factory.mktemp("page")
    bare = trained("bare", "steps=1", "evaluation={}")
    long = trained("long", "name=" + "a" * 80, "steps=2", "optimizer.lr=0.02")
    target = folder / "page.html"
    runs = [str(trained("plain")), str(bare), str(long)]
    done = CliRunner().invoke(main, ["report", *runs, "--out", str(target)])
    assert done.exit_code == 0, done.output
    return target


def browse(folder, url, *options, width=1280, height=900):
    """Open an address. Returns: standard output and the log."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder}/profile", f"--window-size={width},{height}"]
    command += ["--force-device-scale-factor=1", "--enable-logging=stderr", "--v=0"]
    command += ["--disable-background-networking", "--disable-component-update", "--no-first-run"]
    command += ["--disable-extensions", "--virtual-time-budget=4000", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_asks_for_nothing_and_runs_nothing(page, tmp_path, width):
    wrapper = MEASURE.replace("PAGE", "page.html").replace("WIDTH", str(width))
    server = Server({"page.html": page.read_bytes(), "measure.html": wrapper.encode()})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        dom, log = browse(tmp_path, f"{server.url}/measure.html", "--dump-dom", width=1400)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    found = json.loads(re.search(r"\{.*\}", dom, re.S)[0].replace("&lt;", "<").replace("&gt;", ">"))
    assert found["client"] == width
    assert found["scroll"] <= width, found["wide"]
    assert found["wide"] == []
    assert found["title"].startswith("Report: "), "a prompt's script has not run"
    assert found["charts"] > 5
    assert found["images"], "every picture can be decoded"
    assert found["least"] >= 9, "text of a chart is readable"
    assert set(server.asked) <= {"/measure.html", "/page.html", "/favicon.ico"}
    assert "CONSOLE" not in log, log


@pytest.mark.parametrize(("dark", "low", "high"), [(False, 200, 256), (True, 0, 60)])
def test_the_page_is_light_or_dark_as_the_reader_likes_it(page, tmp_path, dark, low, high):
    shot = tmp_path / "shot.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(tmp_path, page.as_uri(), f"--screenshot={shot}", *scheme, width=360, height=700)
    with Image.open(shot) as picture:
        assert picture.size == (360, 700)
        grey = sorted(picture.convert("L").get_flattened_data())
    assert low <= grey[len(grey) // 2] < high, "the page itself is the commonest colour"


def test_a_printed_page_is_light_and_whole(page, tmp_path):
    paper = tmp_path / "page.pdf"
    browse(tmp_path, page.as_uri(), f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF")
    assert paper.stat().st_size > 20_000
