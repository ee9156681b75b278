"""Trackers, plugins and guards that stop or disturb a run: what was done is kept, and said."""

import json
import resource
import subprocess
import sys
import time

import pytest
from resume_runs import SCORED, Told, assert_same_end, child, last, parted, resumed, seeded

from headwater import run_folder
from headwater.composition import compose
from headwater.errors import GuardError, InputError
from headwater.loop import train

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
    time.sleep(1)  # the files are read in the order of their names: the second, then a count
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
