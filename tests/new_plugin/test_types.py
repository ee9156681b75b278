"""What is rendered, and what the page on plugins shows, is clean to mypy in strict mode."""

import subprocess
import sys

import pytest
from new_plugin import page

from headwater import scaffolding
from headwater.installed import KINDS


@pytest.mark.long
def test_the_code_of_every_kind_and_of_the_page_is_clean_to_mypy(tmp_path):
    """One process for all: each rendered module under a name of its own."""
    source = tmp_path / "source"
    source.mkdir()
    for kind in KINDS:
        scaffolding.new_plugin("mine", kind, tmp_path / kind)
        (module,) = (tmp_path / kind / "src").iterdir()
        module.rename(source / f"{module.name}_{kind}")
    page.write(tmp_path / "page")
    (tmp_path / "page" / "src" / "headwater_lantern").rename(source / "headwater_lantern")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
