"""SIGKILL at random moments of real processes: what was whole stays whole, and nothing is lost.

Children are forked from a process that has its imports behind it, so that a kill falls into the
run and not into Python's start. They write to a real disk, whose syncs make writes take time.
"""

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from resume_runs import Told, assert_same_end, seeded
from test_equality import CASES

from headwater import checkpoints
from headwater.composition import compose
from headwater.errors import InputError
from headwater.loop import train
from headwater.run_folder import PARTIAL

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder():
    """An empty folder on a real disk."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        yield Path(name)


def start(path, sets, out, *, resume):
    """A run in a process of its own."""

    def work():
        seeded()
        train(compose(path, sets), out, Told(), resume=resume)

    process = FORK.Process(target=work)
    process.start()
    return process


def ran(path, sets, out, *, resume=False):
    """To its end."""
    process = start(path, sets, out, resume=resume)
    process.join()
    assert process.exitcode == 0


def names(out):
    try:
        return [path.name for path in (out / "checkpoints").iterdir()]
    except FileNotFoundError:
        return []


def writing(out):
    return [n for n in names(out) if n.startswith(f"{PARTIAL}step-")]


def newest_seen(out, before):
    steps = [int(n.removeprefix("step-")) for n in names(out) if n.startswith("step-")]
    return max([before, *steps])


def kill(path, sets, out, writes, records, delay):
    """Kill a run `delay` seconds after a checkpoint began to be written, or a record was.

    writes: which write of a checkpoint to wait for, from 1 on; 0 for none. records: bytes of
    metrics to wait for, if no write. Both are moments of the run, whatever else the machine does.
    Returns: the newest checkpoint that was there before; None where the run was done by then.
    """
    process = start(path, sets, out, resume=False)
    metrics, seen, count, before, ends = out / "metrics.jsonl", 0, 0, set(), math.inf
    while process.is_alive() and time.monotonic() < ends:
        seen = newest_seen(out, seen)
        now = set(writing(out))
        count += len(now - before)
        before = now
        reached = (
            count >= writes if writes else metrics.exists() and metrics.stat().st_size >= records
        )
        if reached and ends == math.inf:
            ends = time.monotonic() + delay
        time.sleep(0.0005)
    process.kill()
    process.join()
    return seen if process.exitcode == -signal.SIGKILL else None


def assert_nothing_lost(out, seen):
    found = checkpoints.found(out / "checkpoints")
    assert max([0, *map(checkpoints.step_of, found)]) >= seen
    assert [checkpoints.damage(path) for path in found] == [""] * len(found)
    if found:
        best = json.loads((found[-1] / "state.json").read_text())["best"]
        assert not best or not checkpoints.damage(found[-1].with_name(best))
    return bool(found)


def rounds(path, sets, folder, number, in_writes, seed):
    """Kill and resume until `number` kills, `in_writes` of them within a write.

    Returns: kills, kills within a write.
    """
    draw = random.Random(seed)
    whole = folder / "whole"
    ran(path, sets, whole)
    size = (whole / "metrics.jsonl").stat().st_size
    done = hit = tries = 0
    while done < number or hit < in_writes:
        tries += 1
        assert tries < 4 * number + 20, f"{done} kills, {hit} in writes after {tries} tries"
        out = folder / f"kill-{tries}"
        aimed = hit < in_writes and draw.random() < 0.6
        writes, records = draw.randint(2, 6) if aimed else 0, draw.uniform(0.2, 0.95) * size
        seen = kill(path, sets, out, writes, records, draw.uniform(0, 0.05))
        if seen is None:
            continue
        within = bool(writing(out))
        if not assert_nothing_lost(out, seen):
            if out.exists():
                with pytest.raises(InputError, match="no checkpoint to resume from"):
                    train(compose(path, sets), out, Told(), resume=True)
            continue  # before the first checkpoint there is nothing to go on from
        ran(path, sets, out, resume=True)
        assert_same_end(whole, out)
        assert not [n for n in names(out) if n.startswith(PARTIAL)]
        done, hit = done + 1, hit + within
        shutil.rmtree(out)
    return done, hit


@pytest.mark.long
def test_forty_kills_lose_nothing(toy_file, folder):
    done, hit = rounds(toy_file, [], folder, 40, 15, seed=6)
    print(f"{done} kills, {hit} of them within the write of a checkpoint")
    assert done >= 40
    assert hit >= 15


@pytest.mark.long
def test_kills_between_the_updates_of_a_rollout_lose_nothing(folder):
    path, sets = CASES["mix-lora"]
    sets = [*sets, "output.checkpoint_every=1", "evaluation.every=100"]
    done, hit = rounds(path, sets, folder, 6, 2, seed=7)
    assert done >= 6
    assert hit >= 2


def test_a_kill_within_a_write_loses_nothing(toy_file, folder):
    done, hit = rounds(toy_file, ["evaluation.every=100"], folder, 2, 1, seed=8)
    assert done >= 2
    assert hit >= 1
