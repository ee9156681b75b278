"""Real runs of the toys, and run folders written line by line."""

import inspect
import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

from headwater.composition import compose
from headwater.loop import train
from headwater.testing import plugins as toy_plugins
from headwater.testing.packages import write_package
from support.offered import offered

torch.set_num_threads(1)
SCRIPT = '<script>document.title = "taken"</script>'
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


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """The toy plugins, installed."""
    folder = tmp_path_factory.mktemp("site")
    package = ("toy-plugins", toy_plugins.ENTRY_POINTS, inspect.getsource(toy_plugins))
    site = write_package(folder, *package)
    before = set(sys.modules)
    with offered([site]):
        yield
    for module in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


@pytest.fixture(scope="module")
def trained(toys, tmp_path_factory):
    """trained(NAME, OVERRIDES..., resume_to=STEPS): the folder of a real run, made once a module."""
    root = tmp_path_factory.mktemp("runs")
    (root / "prompts.txt").write_text("\n".join("p" * n for n in range(1, 8)))
    (root / "eval.txt").write_text(f"q\n{SCRIPT}\nqq & q\n")
    (root / "run.toml").write_text(TOML)
    made: dict[str, Path] = {}

    def make(name, *overrides, resume_to=0):
        if name not in made:
            path = root / "run.toml"
            train(compose(path, overrides), root / name)
            if resume_to:
                longer = [*overrides, f"steps={resume_to}"]
                with warnings.catch_warnings(action="ignore"):  # what changed, and from where
                    train(compose(path, longer), root / name, resume=True)
            made[name] = root / name
        return made[name]

    return make


@pytest.fixture
def written(tmp_path):
    """written(NAME, ROWS, SUMMARY, TOML): a run folder with exactly these files."""

    def write(name="run", rows=(), summary=None, toml="", end=""):
        folder = tmp_path / name
        folder.mkdir()
        text = toml or 'name = "made"\nsteps = 9\n[reward.a]\nuse = "x"\n'
        (folder / "run.toml").write_text(text)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "metrics.jsonl").write_text(lines + end)
        if summary is not None:
            (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return write
