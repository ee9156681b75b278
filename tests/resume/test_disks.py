"""Full and read-only disks: what was done is kept, and said."""

import errno
import os
import re
import resource
import subprocess

import pytest
from click.testing import CliRunner
from resume_runs import Told, assert_same_end, child, last, resumed, seeded

from headwater import checkpoints
from headwater.cli import main
from headwater.composition import compose
from headwater.errors import InputError, OutputError
from headwater.loop import train

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
