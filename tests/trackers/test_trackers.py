"""Real Weights & Biases, MLflow and Trackio: what is on the disk is what the run measured."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from math import isclose
from pathlib import Path

import pytest
import tomli
from trackers.read_back import READERS, nested

from headwater import checkpoints
from headwater.composition import compose
from headwater.errors import InputError

TRACKERS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"),
    )
    for name in READERS
]
each_tracker = pytest.mark.parametrize("tracker", TRACKERS)


def measured(folder):
    """(step, metrics) of core's own `metrics.jsonl`."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line.pop("step"), line) for line in lines]


def by_record(rows):
    """Rows in one order: steps before evaluations, as MLflow keeps no order of its own."""
    return sorted(rows, key=lambda row: (row[0], any(k.startswith("evaluation/") for k in row[1])))


def settled(tracker, folder, count):
    """What is there; a service of Weights & Biases may close its file after the run has ended."""
    deadline = time.monotonic() + 15
    while True:
        found = READERS[tracker](folder)
        ended = tracker != "wandb" or (len(found.rows) >= count and found.status)
        if ended or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def assert_recorded(tracker, folder, times=()):
    """Every step and evaluation is at the tracker, once, with the values of `metrics.jsonl`."""
    expected = by_record(measured(folder))
    found = settled(tracker, folder, len(expected))
    assert len(found.runs) == 1
    rows = by_record(found.rows)
    assert [step for step, _ in rows] == [step for step, _ in expected]
    for (step, got), (_, want) in zip(rows, expected, strict=True):
        assert got.keys() == want.keys(), f"step {step}"
        for key in want.keys() - set(times):
            assert isclose(got[key], want[key], rel_tol=1e-12), f"{key} of step {step}"
    return found


@each_tracker
def test_what_a_run_measures_is_at_the_tracker(run_file, trained, tmp_path, tracker):
    out = tmp_path / "run"
    shown = trained(run_file(tracker), out)
    assert shown.notes == []
    found = assert_recorded(tracker, out)
    assert found.pictures == [0, 2, 4]
    resolved = nested(tomli.loads((out / "run.toml").read_text()))
    for key in ("optimizer.lr", "backbone.use", "rollout.steps", "reward.brightness.use"):
        assert str(found.settings[key]) == str(resolved[key])
    change = json.loads((out / "summary.json").read_text())["reward"]["difference"]["mean"]
    told = found.summary.get(
        "reward.difference.mean", found.summary.get("result.reward.difference.mean")
    )
    assert told == change
    assert found.status == {"wandb": "0", "mlflow": "FINISHED", "trackio": ""}[tracker]


@each_tracker
def test_a_stopped_and_resumed_run_is_one_run_there(run_file, trained, tmp_path, tracker):
    path, out = run_file(tracker), tmp_path / "run"
    trained(path, out, {3: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    before = settled(tracker, out, len(measured(out)))
    assert max(step for step, _ in before.rows) == 3
    again = trained(path, out, resume=True)
    assert not [note for note in again.notes if "failed" in note]
    found = assert_recorded(tracker, out)
    assert found.runs == before.runs


KILLED = """
import os, signal, sys, time
from pathlib import Path
from headwater.composition import compose
from headwater.loop import train
from headwater.progress import Quiet

class Killed(Quiet):
    def after_step(self, step, metrics, skipped):
        if step == 3:
            time.sleep(2.5)  # libraries write up to a second later
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    train(compose(Path(sys.argv[1])), sys.argv[2], Killed())
"""


def child(code, *arguments, **environment):
    """A process of its own, which finds what this one finds."""
    path = os.pathsep.join(p for p in sys.path if p)
    own = {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"}  # not this process's
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
@each_tracker
def test_steps_done_again_after_a_kill_are_recorded_once(run_file, trained, tmp_path, tracker):
    """Step 3 was recorded and is in no checkpoint: it is done again, and not told again."""
    path, out = run_file(tracker), tmp_path / "run"
    assert child(KILLED, path, out).returncode == -signal.SIGKILL
    assert checkpoints.newest(out).name == "step-000002"
    again = trained(path, out, resume=True)
    assert not [note for note in again.notes if "failed" in note]
    assert_recorded(tracker, out, times=("seconds",))


@pytest.mark.long
@pytest.mark.parametrize("tracker", list(READERS))
def test_a_missing_library_is_one_paragraph_before_anything_is_written(run_file, tmp_path, tracker):
    """In a process that cannot import it, from a folder that happens to have its name."""
    path, work = run_file(tracker), tmp_path / "work"
    (work / tracker).mkdir(parents=True)
    code = """
import os, sys
work, tracker, *arguments = sys.argv[1:]
sys.modules[tracker] = None  # as where nobody installed it
os.chdir(work)
sys.argv = ["headwater", *arguments]
from headwater.cli import main
main()
"""
    for arguments in (["check", path], ["run", path, "--out", tmp_path / "run"]):
        result = child(code, work, tracker, *arguments)
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
        said = " ".join(result.stderr.split())
        assert f'{tracker} is not installed; pip install "headwater-trackers[{tracker}]"' in said
        assert f"[observer.{tracker}]" in said
    assert not (tmp_path / "run").exists()


def test_a_folder_of_a_librarys_name_is_no_library(run_file, tmp_path, monkeypatch):
    missing = [name for name in READERS if find_spec(name) is None]
    if not missing:
        pytest.skip("all three libraries are installed")
    (tmp_path / "beside" / missing[0]).mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "beside"))
    with pytest.raises(InputError, match=f"{missing[0]} is not installed"):
        compose(run_file(missing[0]))


def break_wandb(out):
    """Kill its service, a child of this process."""
    (children,) = Path(f"/proc/{os.getpid()}/task").glob(f"{os.getpid()}/children")
    ours = [int(pid) for pid in children.read_text().split()]
    services = [pid for pid in ours if b"wandb-core" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert services
    for pid in services:
        os.kill(pid, signal.SIGKILL)


def break_mlflow(out):
    (out / "mlflow/mlflow.db").write_bytes(b"no database" * 1000)


def break_trackio(out):
    (Path(os.environ["TRACKIO_DIR"]) / f"{out.parent.name}.db").write_bytes(b"no database" * 1000)


BREAK = {"wandb": break_wandb, "mlflow": break_mlflow, "trackio": break_trackio}


@each_tracker
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_tracker_that_breaks_in_the_middle_changes_nothing(run_file, trained, tmp_path, tracker):
    path, out = run_file(tracker), tmp_path / "run"
    began = time.monotonic()
    shown = trained(path, out, {2: lambda: BREAK[tracker](out)})
    if tracker == "wandb":
        with suppress(OSError):  # the service is gone; a later run of this process gets another
            import wandb

            wandb.teardown()
    assert time.monotonic() - began < 60
    failures = [
        note for note in shown.notes if f"tracker {tracker!r}" in note and "failed in" in note
    ]
    assert len(failures) <= 1  # said once, where the library notices at all
    assert tracker == "trackio" or failures
    alone = tmp_path / "alone"
    trained(run_file(), alone)
    for step, want in measured(alone):
        assert any(s == step and same(got, want) for s, got in measured(out))
    weights = [checkpoints.load(checkpoints.newest(f), "live")[0] for f in (out, alone)]
    assert all(bool((weights[0][k] == weights[1][k]).all()) for k in weights[1])


def same(got, want):
    times = {"seconds", "evaluation/seconds"}
    return got.keys() == want.keys() and all(got[k] == want[k] for k in want.keys() - times)


ONLINE = """
import sys
import threading
from pathlib import Path
import headwater
if __name__ == "__main__":
    headwater.run(Path(sys.argv[1]), out=sys.argv[2])
"""


@pytest.fixture
def proxy():
    """What every library asks for an address beyond this machine; counts who asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        asked, stop = [], threading.Event()

        def serve():
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    asked.append(connection.recv(200))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        stop.set()
        thread.join()


@pytest.mark.long
@each_tracker
def test_nothing_goes_beyond_this_machine(run_file, tmp_path, tracker, proxy):
    """Not from the libraries' own processes either, which obey the usual proxy variables."""
    url, asked = proxy
    names = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
    result = child(ONLINE, run_file(tracker), tmp_path / "run", **dict.fromkeys(names, url))
    assert result.returncode == 0, result.stderr
    assert asked == []


@pytest.mark.long
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_an_online_run_does_ask(run_file, tmp_path, proxy):
    """So the count above would have seen it. Nobody answers, and the run goes on."""
    url, asked = proxy
    key = {"WANDB_API_KEY": "a" * 40, "WANDB_INIT_TIMEOUT": "5"}
    path = run_file("wandb", mode="online")
    result = child(ONLINE, path, tmp_path / "run", HTTPS_PROXY=url, https_proxy=url, **key)
    assert result.returncode == 0, result.stderr
    assert asked
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_online_without_an_account_is_one_sentence_before_the_run(run_file):
    with pytest.raises(InputError, match="needs an account; call `wandb login`"):
        compose(run_file("wandb", mode="online"))
