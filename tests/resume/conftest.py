"""One thread, the toys as an installed distribution, and the helpers of this folder importable."""

import inspect
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from headwater.testing import plugins as toy_plugins
from headwater.testing.packages import write_package
from support.offered import offered

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

TOML = """
name = "toy"
seed = 3
steps = 12
[backbone]
use = "toy"
[prompts]
file = "prompts.txt"
per_step = 4
micro_batch = 2
[rollout]
steps = 4
height = 4
width = 4
[reward.brightness]
use = "toy-brightness"
[algorithm]
use = "toy-direct"
[estimator]
use = "toy-wandering"
[optimizer]
lr = 0.01
warmup = 3
ema = 0.9
[evaluation]
every = 3
prompts = "eval.txt"
keep_best = "count"
[evaluation.reward.count]
use = "toy-count"
[output]
checkpoint_every = 2
trackers = ["jsonl"]
"""


@pytest.fixture(scope="session")
def disk():
    """A folder for short-lived runs, in memory where the system offers that: syncs take no time."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def tmp_path(disk):
    """An empty folder."""
    folder = Path(tempfile.mkdtemp(dir=disk))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def toys(disk):
    """The toys and an estimator that remembers, as installed distributions. Returns: their folders."""
    import wandering

    return [
        write_package(disk / name, name, module.ENTRY_POINTS, inspect.getsource(module))
        for name, module in (("toy-plugins", toy_plugins), ("toy-wandering", wandering))
    ]


@pytest.fixture(scope="module", autouse=True)
def installed(toys):
    """They are found while this folder's tests run; other folders have toys of their own."""
    with offered(toys):
        yield


@pytest.fixture(scope="session")
def toy_file(disk, toys):
    """A run file of the toys, a run of milliseconds."""
    (disk / "prompts.txt").write_text("\n".join("p" * n for n in range(1, 8)))
    (disk / "eval.txt").write_text("\n".join("q" * n for n in range(1, 6)))
    path = disk / "toy.toml"
    path.write_text(TOML)
    return path


@pytest.fixture(scope="session")
def whole(disk, toy_file):
    """whole(SETS): the folder of the uninterrupted run with these overrides, made once."""
    from resume_runs import straight

    made = {}

    def folder(*sets):
        if sets not in made:
            made[sets] = disk / f"whole-{len(made)}"
            straight(toy_file, sets, made[sets])
        return made[sets]

    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a distribution for this test."""

    def install(name, entry_points, source):
        monkeypatch.syspath_prepend(str(write_package(tmp_path / name, name, entry_points, source)))

    yield install
    for module in [m for m in sys.modules if m.startswith("their_")]:
        del sys.modules[module]
