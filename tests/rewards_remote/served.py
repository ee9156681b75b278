"""A real `headwater serve-reward` in a process of its own, and rewards that misbehave."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import torch

from headwater.testing.packages import write_package
from headwater_rewards_remote.pictures import encode

REWARDS = """
import threading, time
import attrs, torch
from typing import ClassVar
from headwater import hookimpl

@attrs.define(eq=False)
class Echo:
    '''The first pixel. A second caller while one is inside is an error.'''
    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True
    margin: ClassVar = None
    pause: float = 0.003
    _inside: object = attrs.field(init=False, factory=threading.Lock)

    @hookimpl
    def score(self, images, batch):
        if not self._inside.acquire(blocking=False):
            raise RuntimeError('two calls at once')
        try:
            time.sleep(self.pause)
            right = [str(round(float(x) * 1000)) == p.text for x, p in zip(images[:, 0, 0, 0], batch.prompts)]
            return torch.where(torch.tensor(right), images[:, 0, 0, 0], -1.0)
        finally:
            self._inside.release()

@attrs.define(eq=False)
class Sizes:
    '''How many images came in one call.'''
    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
    margin: ClassVar = None
    pause: float = 0.0

    @hookimpl
    def score(self, images):
        time.sleep(self.pause)
        return torch.full((len(images),), float(len(images)), dtype=torch.float64)

@attrs.define(eq=False)
class Broken:
    '''NaN for a white first pixel, a RuntimeError for the text crash, a wrong shape for odd.'''
    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True
    margin: ClassVar = None
    level: float = 1.0

    @hookimpl
    def score(self, images, batch):
        texts = [prompt.text for prompt in batch.prompts]
        if 'crash' in texts:
            raise RuntimeError('out of memory, say')
        if 'odd' in texts:
            return torch.zeros(len(texts) + 1)
        return torch.where(images[:, 0, 0, 0] == self.level, torch.nan, images[:, 0, 0, 0])
"""
ENTRY_POINTS = {"reward echo": "Echo", "reward sizes": "Sizes", "reward broken": "Broken"}
TOML = """
[reward.echo]
use = "echo"
[reward.sizes]
use = "sizes"
pause = 0.2
[reward.broken]
use = "broken"
[evaluation.reward.detector]
use = "tiny-detector"
[evaluation.reward.preference]
use = "tiny-preference"
dtype = "float64"
"""


class Served:
    """A running server: its address and its process."""

    def __init__(self, process, url, announcement):
        self.process, self.url, self.announcement = process, url, announcement

    def stop(self, number=signal.SIGTERM, wait=20):
        """Send a signal; the exit code and what was said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=wait)
        return self.process.returncode, out + err


def command(file, *options, site=None, env=()):
    """Start `headwater serve-reward`, without waiting for it."""
    path = os.pathsep.join(filter(None, [str(site) if site else "", os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "headwater", "serve-reward", str(file), *options],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **dict(env)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(folder: Path, *options, toml=TOML, env=()):
    """A server of the rewards above, on a free port."""
    site = write_package(folder / "site", "odd-rewards", ENTRY_POINTS, REWARDS)
    file = folder / "served.toml"
    file.write_text(toml)
    process = command(file, "--port", "0", *options, site=site, env=env)
    try:
        line = process.stdout.readline()
        assert " on http://" in line, (line, process.communicate(timeout=20))
        yield Served(process, line.split(" on ")[-1].strip(), line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def body(*rewards, values=(0.25,), texts=None, kind="float32", **changes):
    """A request as JSON takes it: one 4 x 4 image a value, its level on the first pixel."""
    images = torch.zeros(len(values), 3, 4, 4)
    images[:, 0, 0, 0] = torch.tensor(values)
    texts = texts or [str(round(value * 1000)) for value in values]
    made = {"rewards": list(rewards), "images": encode(images, kind)}
    return {**made, "prompts": [{"text": text} for text in texts], **changes}


def ask(url, payload=None, *, raw=None, headers=(), timeout=20):
    """Status and JSON of one request by the standard library."""
    data = raw if raw is not None else (json.dumps(payload).encode() if payload else None)
    kind = {"Content-Type": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data, {**kind, **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
