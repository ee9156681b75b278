"""Signals, full and read-only disks, and trackers that fail: what was done is kept, and said."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from resume_runs import Told, assert_same_end, last, lines, seeded

from headwater import checkpoints, run_folder
from headwater.cli import main
from headwater.composition import compose
from headwater.errors import GuardError, InputError, OutputError
from headwater.loop import train

HERE = Path(__file__).parent


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


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a distribution for this test."""
    from headwater.testing.packages import write_package

    def install(name, entry_points, source):
        monkeypatch.syspath_prepend(str(write_package(tmp_path / name, name, entry_points, source)))

    yield install
    for module in [m for m in sys.modules if m.startswith("their_")]:
        del sys.modules[module]


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_signal_during_an_evaluation_ends_it_and_it_is_made_up_for(
    toy_file, tmp_path, package, number, call
):
    """Five evaluations, each of three batches: the 1st and 2nd call are in that of step 0."""
    sets = ["evaluation.reward.count.use=judge", "evaluation.batch=2"]
    parted(package, SCORED.format(call=0, what="pass"), "reward", "judge")
    seeded()
    train(compose(toy_file, sets), tmp_path / "whole")
    del sys.modules["their_judge"]
    what = f"os.kill(os.getpid(), {int(number)})"
    parted(package, SCORED.format(call=call, what=what), "reward", "judge")
    seeded()
    first = train(compose(toy_file, sets), tmp_path / "parts", Told())
    assert first.stopped == number.name
    assert first.steps == (0 if call < 4 else 3)
    assert last(tmp_path / "parts").name == f"step-{first.steps:06d}"
    assert all(row["step"] < first.steps or "loss" in row for row in lines(tmp_path / "parts"))
    found, _ = resumed(toy_file, tmp_path / "parts", *sets)
    assert (found.steps, found.stopped) == (12, "")
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_signal_during_a_checkpoint_lets_it_be_finished(toy_file, tmp_path, whole, monkeypatch):
    real = checkpoints.sync
    calls = []

    def sync_and_ask(path):
        calls.append(path)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        real(path)

    monkeypatch.setattr(checkpoints, "sync", sync_and_ask)
    seeded()
    first = train(compose(toy_file, []), tmp_path / "out", Told())
    monkeypatch.undo()
    assert (first.steps, first.stopped) == (2, "SIGTERM")
    assert not checkpoints.damage(last(tmp_path / "out"))
    resumed(toy_file, tmp_path / "out")
    assert_same_end(whole(), tmp_path / "out")


def test_a_second_signal_stops_at_once_and_loses_no_checkpoint(toy_file, tmp_path, whole):
    class Twice(Told):
        def after_step(self, step, metrics, skipped):
            if step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    seeded()
    with pytest.raises(KeyboardInterrupt):
        train(compose(toy_file, []), tmp_path / "out", Twice())
    assert last(tmp_path / "out").name == "step-000004"
    resumed(toy_file, tmp_path / "out")
    assert_same_end(whole(), tmp_path / "out")


def test_a_signal_after_the_last_step_is_a_run_that_is_done(toy_file, tmp_path, whole):
    class Late(Told):
        def after_evaluation(self, step, metrics):
            if step == 12:
                os.kill(os.getpid(), signal.SIGTERM)

    seeded()
    found = train(compose(toy_file, []), tmp_path / "out", Late())
    assert (found.steps, found.stopped) == (12, "")
    assert_same_end(whole(), tmp_path / "out")


def test_the_command_exits_with_130_and_says_how_to_go_on(toy_file, toys, tmp_path):
    out = tmp_path / "out"
    code = "import sys; from headwater.cli import main; main(sys.argv[1:])"
    sets = ["--set", "steps=100000", "--set", "output.checkpoint_every=100000"]
    process = child(toys, code, "run", toy_file, "--out", out, *sets)
    while not (out / "metrics.jsonl").exists() or "loss" not in (out / "metrics.jsonl").read_text():
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGTERM)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped by SIGTERM after step" in text
    assert f"--out {out} --resume goes on" in text
    assert not checkpoints.damage(last(out))
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_signal_while_weights_load_stops_at_once(toy_file, toys, tmp_path):
    code = """
import os, signal, sys
from headwater import loop
real = loop.open_stage
def slow(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*given)
loop.open_stage = slow
from headwater.cli import main
main(sys.argv[1:])
"""
    process = child(toys, code, "run", toy_file, "--out", tmp_path / "out")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


LIMITED = """
import resource, sys
import torch
torch.set_num_threads(1)
from headwater import loop
from headwater.cli import main
from resume_runs import seeded
real = loop.checkpoints.save
def save(folder, step, *rest):
    if step == int(sys.argv[1]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    return real(folder, step, *rest)
loop.checkpoints.save = save
seeded()
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    "limit", [pytest.param(n, marks=pytest.mark.long) for n in (0, 1000, 12_000, 15_400)]
)
def test_a_checkpoint_that_does_not_fit_is_one_paragraph(toy_file, toys, tmp_path, whole, limit):
    """The limit of a file's size falls into the state, the weights or the last file of all."""
    out = tmp_path / "out"
    sets = [f"--set={text}" for text in ("evaluation.every=100",)]
    process = child(toys, LIMITED, 6, limit, "run", toy_file, "--out", out, *sets)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    said = re.search(r"Error: (.*)", errors)[1]
    assert "the checkpoint of step 6 cannot be written: File too large" in said
    assert "The last checkpoint is step-000004; the same command with --resume goes on" in said
    folders = [p.name for p in (out / "checkpoints").iterdir()]
    assert folders == ["step-000004"]
    assert not checkpoints.damage(last(out))
    resumed(toy_file, out, "evaluation.every=100")
    assert_same_end(whole("evaluation.every=100"), out)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder, free):
    """Take up all but `free` bytes. Returns: the file that does."""
    path = folder / "ballast"
    path.write_bytes(b"")
    with path.open("ab", buffering=0) as opened:
        try:
            while True:
                opened.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.truncate(path, max(0, path.stat().st_size - free))
    return path


class Filling(Told):
    """Fills the disk after a step."""

    def __init__(self, folder, after, free):
        super().__init__()
        self.folder, self.after, self.free = folder, after, free

    def after_step(self, step, metrics, skipped):
        if step == self.after:
            fill(self.folder, self.free)


@pytest.mark.parametrize(
    ("after", "free", "what"),
    [
        (5, 40_960, "the checkpoint of step 6"),
        (6, 0, "the sample picture"),
        (6, 16_384, "the checkpoint of step 6"),
    ],
)
def test_a_full_disk_is_one_paragraph_and_room_is_all_it_takes(
    toy_file, whole, small_disk, after, free, what
):
    out = small_disk / "out"
    seeded()
    with pytest.raises(OutputError) as caught:
        train(compose(toy_file, []), out, Filling(small_disk, after, free))
    text = str(caught.value)
    assert caught.value.exit_code == 1
    assert f"{what} cannot be written: No space left on device (0 MB are free)" in text
    assert "The last checkpoint is step-000004" in text
    assert "\n" not in text
    assert not checkpoints.damage(last(out))
    (small_disk / "ballast").unlink()
    resumed(toy_file, out)
    assert_same_end(whole(), out)


def test_metrics_that_cannot_be_written_end_the_run_and_none_is_lost(toy_file, whole, tmp_path):
    """Under a limit of the file's size as it is: half a line may be written before it is hit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Limiting(Told):
        def after_step(self, step, metrics, skipped):
            if step == 5:
                size = (tmp_path / "out" / "metrics.jsonl").stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))

    seeded()
    try:
        with pytest.raises(OutputError, match=r"tracker 'jsonl' cannot be written: File too large"):
            train(compose(toy_file, []), tmp_path / "out", Limiting())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out" / "metrics.jsonl").read_text().endswith("\n")
    assert last(tmp_path / "out").name == "step-000004"
    resumed(toy_file, tmp_path / "out")
    assert_same_end(whole(), tmp_path / "out")


def test_a_disk_that_becomes_read_only_ends_the_run_and_is_refused_at_once(
    toy_file, whole, small_disk
):
    out = small_disk / "out"

    class Locking(Told):
        def after_step(self, step, metrics, skipped):
            if step == 5:
                remount("ro")

    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=False)

    seeded()
    train(compose(toy_file, ["output.trackers=[]"]), out, Told(4))
    remount("ro")
    try:
        with pytest.raises(InputError, match=r"it cannot be written: .*Read-only"):
            resumed(toy_file, out, "output.trackers=[]")
        with pytest.raises(InputError, match=r"cannot be written: .*Read-only"):
            train(compose(toy_file, []), small_disk / "other")
    finally:
        remount("rw")
    found, _ = resumed(toy_file, out, "output.trackers=[]")
    assert found.steps == 12


def test_an_output_that_cannot_be_made_is_wrong_input(toy_file):
    result = CliRunner().invoke(main, ["run", str(toy_file), "--out", "/proc/headwater"])
    assert result.exit_code == 2
    assert "the output folder cannot be written" in result.output


TRACKER = """
    import attrs
    from headwater import hookimpl

    @attrs.define(eq=False)
    class Theirs:
        calls: int = attrs.field(init=False, default=0)
        @hookimpl
        def start(self, run, folder):
            self.note("start")
        @hookimpl
        def after_step(self, step, metrics):
            self.note("after_step")
        @hookimpl
        def after_evaluation(self, step, metrics):
            self.note("after_evaluation")
        @hookimpl
        def finish(self, reason):
            self.note("finish")
        def state(self):
            self.note("state")
            return {"calls": self.calls}
        def restore(self, state):
            self.note("restore")
        def note(self, where):
            self.calls += 1
            if where == FAILS:
                raise ValueError("no network")
"""


@pytest.mark.parametrize(
    "where", ["start", "after_step", "after_evaluation", "finish", "state", "restore"]
)
def test_a_tracker_that_fails_is_reported_once_and_the_run_is_the_same(
    toy_file, tmp_path, whole, package, where
):
    parted(package, TRACKER.replace("FAILS", repr(where)), "observer", "flaky")
    sets = ["output.trackers=['flaky','jsonl']"]
    seeded()
    progress = Told(5)
    train(compose(toy_file, sets), tmp_path / "out", progress)
    again = Told()
    train(compose(toy_file, sets), tmp_path / "out", again, resume=True)
    assert_same_end(whole(), tmp_path / "out")
    first, *more = [n for n in [*progress.notes, *again.notes] if "flaky" in n and "failed in" in n]
    assert (
        f"tracker 'flaky' (their-flaky 1.0 (their_flaky:Theirs)) failed in {where}: ValueError: no network"
        in first
    )
    assert len(more) == (where not in ("restore",))  # once in each process
    counted = [n for n in progress.notes if "failed 5 times; its records have gaps" in n]
    assert len(counted) == (where == "after_step")


def test_two_processes_cannot_train_into_one_folder(toy_file, toys, tmp_path):
    code = """
import sys
from headwater.run_folder import held
from pathlib import Path
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
    out = tmp_path / "out"
    seeded()
    train(compose(toy_file, []), out, Told(5))
    process = child(toys, code, out, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(InputError, match="another process is training into it"):
        resumed(toy_file, out)
    process.kill()
    process.communicate()
    found, _ = resumed(toy_file, out)
    assert found.steps == 12


def test_skips_in_a_row_are_counted_across_a_resumption(toy_file, tmp_path):
    """Steps 4 and 5 are skipped before the stop; a third in a row afterwards ends the run."""
    (tmp_path / "p.txt").write_text("nan\n")
    kind = ["reward.brightness={use='toy-nan',kind='gradient'}", "guard.max_skips=3"]
    sets = [
        *kind,
        f"prompts.file={tmp_path / 'p.txt'}",
        "evaluation.prompts=''",
        "evaluation.keep_best=''",
    ]
    seeded()
    found = train(compose(toy_file, sets), tmp_path / "out", Told(2))
    assert found.steps == 2
    with pytest.raises(GuardError, match="3 updates in a row were skipped"):
        resumed(toy_file, tmp_path / "out", *sets)
    assert last(tmp_path / "out").name == "step-000003"
    state = json.loads((last(tmp_path / "out") / "state.json").read_text())
    assert state["guard"] == {"norms": [], "in_a_row": 3, "skipped": 3}
    with pytest.raises(GuardError, match="4 updates in a row were skipped"):
        resumed(toy_file, tmp_path / "out", *sets)
    with pytest.raises(GuardError, match="6 updates in a row were skipped"):
        resumed(toy_file, tmp_path / "out", *sets[:1], "guard.max_skips=6", *sets[2:])


def test_a_fault_in_a_plugin_keeps_the_steps_before_it(toy_file, tmp_path, whole, package):
    """Its own trained reward fails within step 6; what step 5 left is saved and goes on."""
    source = SCORED.replace(
        "differentiable, needs_text, margin = False", "differentiable, needs_text, margin = True"
    )
    sets = [
        "reward.brightness.use=shaky",
        "output.checkpoint_every=100",
        "evaluation.prompts=''",
        "evaluation.keep_best=''",
    ]
    parted(package, source.format(call=0, what="pass"), "reward", "shaky")
    seeded()
    train(compose(toy_file, sets), tmp_path / "whole")
    del sys.modules["their_shaky"]
    # two micro-batches a step: the second one of step 6 fails, after the first has moved the walk
    parted(package, source.format(call=12, what="raise ConnectionError('gone')"), "reward", "shaky")
    seeded()
    with pytest.raises(ConnectionError, match="gone"):
        train(compose(toy_file, sets), tmp_path / "parts", Told())
    assert last(tmp_path / "parts").name == "step-000005"
    resumed(toy_file, tmp_path / "parts", *sets)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_plugin_whose_state_cannot_be_saved_is_named(toy_file, tmp_path, package):
    source = (
        SCORED.format(call=0, what="pass")
        + """
        def state(self):
            return {"socket": object()}
        def restore(self, state): ...
    """
    )
    parted(package, source, "reward", "odd")
    with pytest.raises(
        Exception, match=r"\[evaluation\.reward\.count\] \(their-odd 1\.0 .*\): its state"
    ):
        train(compose(toy_file, ["evaluation.reward.count.use=odd"]), tmp_path / "out")


def test_an_evaluation_that_is_not_finite_writes_no_checkpoint(toy_file, tmp_path, package):
    what = "return images.flatten(1).mean(dim=1) * float('nan')"
    parted(package, SCORED.format(call=2, what=what), "reward", "sick")
    sets = ["evaluation.reward.count.use=sick", "output.checkpoint_every=2", "evaluation.batch=5"]
    with pytest.raises(GuardError, match="evaluation: reward 'count' is nan"):
        train(compose(toy_file, sets), tmp_path / "out", Told())
    assert last(tmp_path / "out").name == "step-000002"


def test_tensorboard_drops_the_events_of_steps_done_again(toy_file, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sets = ["output.trackers=['tensorboard']", "output.checkpoint_every=4", "evaluation.every=100"]

    class Break(Told):
        def after_step(self, step, metrics, skipped):
            if step == 7:
                raise KeyboardInterrupt

    seeded()
    with pytest.raises(KeyboardInterrupt):
        train(compose(toy_file, sets), tmp_path / "out", Break())
    resumed(toy_file, tmp_path / "out", *sets)
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("grad_norm")] == list(range(1, 13))


def test_a_run_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "run.toml"
    run_folder.write_text(path, "one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run_folder.write_text(path, "two two two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["run.toml"]
