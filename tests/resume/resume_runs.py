"""Runs that stop and go on, and what must be equal at their end."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from headwater import checkpoints
from headwater.composition import compose
from headwater.loop import train
from headwater.progress import Quiet

HERE = Path(__file__).parent
TIMES = {"seconds", "evaluation/seconds"}

SCORED = """
    import os, signal
    import attrs
    from headwater import hookimpl

    @attrs.define(eq=False)
    class Theirs:
        differentiable, needs_text, margin = False, False, None
        calls = 0
        @hookimpl
        def score(self, images):
            Theirs.calls += 1
            if Theirs.calls == {call}:
                {what}
            return images.flatten(1).mean(dim=1)
"""


class Told(Quiet):
    """Keeps what it is told, and asks the run to stop after a step."""

    def __init__(self, stop_after=0, number=signal.SIGTERM):
        self.stop_after, self.number, self.notes = stop_after, number, []

    def after_step(self, step, metrics, skipped):
        if step == self.stop_after:
            os.kill(os.getpid(), self.number)

    def note(self, text):
        self.notes.append(text)


def seeded():
    """The global generators as a fresh process might have them."""
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)


def straight(path, sets, out):
    seeded()
    return train(compose(path, sets), out)


def interrupted(path, sets, out, after=5):
    """`after` steps, then the rest in what could be another process."""
    seeded()
    first = train(compose(path, sets), out, Told(after))
    assert (first.steps, first.stopped) == (after, "SIGTERM")
    torch.manual_seed(99)
    return train(compose(path, sets), out, Told(), resume=True)


def lines(out):
    """Metrics without times."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def last(out):
    return checkpoints.found(out / "checkpoints")[-1]


def bits(path):
    """Every tensor of a file, as bytes: 0.0 is not -0.0 here."""
    return {
        name: t.contiguous().view(-1).view(torch.uint8).tolist()
        for name, t in load_file(path).items()
    }


def assert_same_end(one, other):
    """Weights, average, optimizer, evaluations, metrics and pictures of two run folders."""
    assert last(one).name == last(other).name
    names = ["weights", "ema", "optimizer", "first", "last"]
    for name in names:
        left, right = last(one) / f"{name}.safetensors", last(other) / f"{name}.safetensors"
        assert left.exists() == right.exists(), name
        if left.exists():
            assert bits(left) == bits(right), name
    assert lines(one) == lines(other)
    pictures = sorted(p.name for p in (one / "samples").iterdir())
    assert pictures == sorted(p.name for p in (other / "samples").iterdir())
    for name in pictures:
        assert (one / "samples" / name).read_bytes() == (other / "samples" / name).read_bytes()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    for key in ("steps", "reward", "held_out", "forwards", "backwards", "stopped", "evaluated_at"):
        assert summaries[0][key] == summaries[1][key], key
    names = [{p.name for p in (f / "checkpoints").iterdir()} for f in (one, other)]
    assert names[0] == names[1]


def child(toys, code, *arguments, **more):
    """A fresh interpreter that finds the toys. Returns: the process."""
    path = os.pathsep.join([str(HERE), str(HERE.parent), *map(str, toys)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def resumed(toy_file, out, *sets):
    progress = Told()
    return train(compose(toy_file, sets), out, progress, resume=True), progress.notes


def parted(package, source, kind, name):
    package(f"their-{name}", {f"{kind} {name}": "Theirs"}, source)
