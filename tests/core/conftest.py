import inspect
import sys
from pathlib import Path

import pytest

from headwater.testing import plugins as toy_plugins
from headwater.testing.packages import write_package

TOML = """
name = "toy"
seed = 3
steps = 4
[backbone]
use = "toy"
[prompts]
file = "prompts.txt"
per_step = 4
micro_batch = 4
[rollout]
steps = 5
height = 4
width = 4
[reward.brightness]
use = "toy-brightness"
[algorithm]
use = "toy-direct"
[estimator]
use = "toy-bptt"
[optimizer]
lr = 0.01
[evaluation]
every = 2
prompts = "eval.txt"
[evaluation.reward.count]
use = "toy-count"
[output]
checkpoint_every = 2
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a distribution for this test: package(name, entry_points, source)."""
    before = set(sys.modules)

    def install(name, entry_points, source, version="1.0"):
        folder = write_package(tmp_path / "site", name, entry_points, source, version)
        monkeypatch.syspath_prepend(str(folder))

    yield install
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


@pytest.fixture
def toys(package):
    """The toy plugins as an installed distribution."""
    package("toy-plugins", toy_plugins.ENTRY_POINTS, inspect.getsource(toy_plugins))


@pytest.fixture
def run_file(tmp_path, toys):
    """A run file of the toys; run_file(**{"old text": "new text"}) replaces text."""
    (tmp_path / "prompts.txt").write_text("\n".join("p" * n for n in range(1, 8)))
    (tmp_path / "eval.txt").write_text("\n".join("q" * n for n in range(1, 6)))

    def write(replaced=None, extra="", name="run.toml") -> Path:
        text = TOML
        for old, new in (replaced or {}).items():
            assert old in text, f"{old!r} is not in the run file"
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text + extra)
        return path

    return write
