"""One thread; the toy model, and estimators whose likeness to the exact gradient is known."""

import inspect
import sys
from pathlib import Path

import pytest
import torch

from headwater.testing import plugins as toy_plugins
from headwater.testing.packages import write_package

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
torch.set_num_threads(1)

TOML = """
name = "toy"
seed = 3
steps = 4
[backbone]
use = "toy"
[prompts]
file = "prompts.txt"
per_step = 4
micro_batch = 2
[rollout]
steps = 5
height = 4
width = 4
[reward.brightness]
use = "toy-brightness"
[algorithm]
use = "direct"
margin = "none"
[estimator]
use = "bptt"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a distribution for this test: package(name, entry_points, source)."""
    before = set(sys.modules)

    def install(name, entry_points, source):
        folder = write_package(tmp_path / "site", name, entry_points, source)
        monkeypatch.syspath_prepend(str(folder))

    yield install
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


@pytest.fixture
def run_file(tmp_path, package):
    """The toy run file, with text replaced: run_file({"old": "new"})."""
    import known

    package("toy-plugins", toy_plugins.ENTRY_POINTS, inspect.getsource(toy_plugins))
    package("known-estimators", known.ENTRY_POINTS, inspect.getsource(known))
    (tmp_path / "prompts.txt").write_text("\n".join("p" * n for n in range(1, 8)))

    def write(replaced=None) -> Path:
        text = TOML
        for old, new in (replaced or {}).items():
            assert old in text, f"{old!r} is not in the run file"
            text = text.replace(old, new)
        (tmp_path / "run.toml").write_text(text)
        return tmp_path / "run.toml"

    return write
