"""Installed test plugins, a hacked run of the tiny model and a run of the toys, each made once."""

import inspect
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from headwater.testing import plugins as toy_plugins
from headwater.testing.packages import write_package
from support import hackable
from support.offered import offered

torch.set_num_threads(1)

HACKED = """
name = "hacked"
seed = 1
steps = 20
[backbone]
use = "tiny"
train = "full"
[prompts]
file = "tiny:train"
per_step = 4
micro_batch = 4
[rollout]
steps = 4
guidance = 2.0
height = 32
width = 32
[reward.saturation]
use = "saturation"
[algorithm]
use = "direct"
[estimator]
use = "draft-k"
[optimizer]
lr = 3e-4
ema = 0.0
[evaluation]
every = 2
prompts = "tiny:eval"
count = 16
batch = 16
keep_best = "preference"
patience = 2
on_hacking = "stop"
[evaluation.reward.preference]
use = "tiny-preference"
[output]
trackers = ["jsonl"]
images = 2
checkpoint_every = 100
"""

TOY = """
name = "toy"
seed = 3
steps = 3
[backbone]
use = "toy"
[prompts]
file = "prompts.txt"
per_step = 4
micro_batch = 3
[rollout]
steps = 4
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
ema = 0.5
[evaluation]
every = 2
prompts = "eval.txt"
[evaluation.reward.count]
use = "toy-count"
[output]
trackers = ["jsonl"]
checkpoint_every = 1
keep_every = 1
"""


@pytest.fixture(scope="session")
def disk():
    """A folder in memory where the system offers that."""
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
def packages(disk):
    """Folders of the toys and the hackable rewards as distributions."""
    return [
        write_package(disk / name, name, module.ENTRY_POINTS, inspect.getsource(module))
        for name, module in (("toy-plugins", toy_plugins), ("hackable", hackable))
    ]


@pytest.fixture(scope="module", autouse=True)
def installed(packages):
    """They are found while this folder's tests run; other folders have toys of their own."""
    with offered(packages):
        yield


@pytest.fixture(scope="session")
def headwater():
    """headwater(ARGUMENTS...): the command line in this process."""
    from headwater.cli import main

    return lambda *arguments: CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="session")
def hacked_file(disk):
    path = disk / "hacked.toml"
    path.write_text(HACKED)
    return path


@pytest.fixture(scope="session")
def hacked(disk, hacked_file, headwater, packages):
    """The result of the command line, and the run folder."""
    with offered(packages):
        return headwater("run", hacked_file, "--out", disk / "hacked"), disk / "hacked"


@pytest.fixture(scope="session")
def toy_file(disk):
    (disk / "prompts.txt").write_text("\n".join("p" * n for n in range(1, 8)))
    (disk / "eval.txt").write_text("\n".join("q" * n for n in range(1, 6)))
    path = disk / "toy.toml"
    path.write_text(TOY)
    return path


@pytest.fixture(scope="session")
def toy_run(disk, toy_file, packages):
    """A trained run folder of the toys."""
    from headwater.composition import compose
    from headwater.loop import train

    with offered(packages):
        train(compose(toy_file), disk / "toy-run")
    return disk / "toy-run"
