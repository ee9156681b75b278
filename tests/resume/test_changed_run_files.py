"""A run file that changed before a resumption: what may, what may not, and what is said."""

import json
import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest
from click.testing import CliRunner
from resume_runs import Told, assert_same_end, last, lines, seeded, straight

from headwater.cli import main
from headwater.composition import compose
from headwater.errors import InputError
from headwater.loop import train


@pytest.fixture(scope="module")
def stopped(toy_file, disk):
    """A run of twelve steps that was interrupted after five."""
    seeded()
    train(compose(toy_file, []), disk / "stopped", Told(5))
    return disk / "stopped"


@pytest.fixture
def half(stopped, tmp_path):
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / "out")


def resumed(toy_file, out, *sets):
    progress = Told()
    return train(compose(toy_file, sets), out, progress, resume=True), progress.notes


@pytest.mark.parametrize(
    "change",
    [
        "seed=4",
        "prompts.per_step=2",
        "prompts.group=2",
        "prompts.micro_batch=4",
        "rollout.steps=5",
        "rollout.store=bfloat16",
        "reward.brightness.weight=2",
        "reward.more.use=toy-brightness",
        "estimator.use=toy-bptt",
        "estimator.draws=2",
        "engine.mode=joint",
        "optimizer.lr=0.02",
        "optimizer.ema=0",
        "optimizer.schedule=cosine",
        "optimizer.betas=[0.8,0.9]",
    ],
)
def test_what_the_weights_depend_on_may_not_change(toy_file, half, change):
    before = {p: p.read_bytes() for p in half.rglob("*") if p.is_file()}
    with pytest.raises(InputError) as caught:
        resumed(toy_file, half, change)
    text = str(caught.value)
    key = change.split("=")[0]
    assert "is not the run of" in text
    assert key.replace(".more.use", ".more") in text
    assert (
        "may change: name, steps (not under a cosine schedule), [evaluation], [output], [guard]"
        in text
    )
    assert {p: p.read_bytes() for p in half.rglob("*") if p.is_file()} == before


def test_all_that_changed_is_named_at_once_with_both_values(toy_file, half):
    with pytest.raises(InputError) as caught:
        resumed(toy_file, half, "seed=4", "optimizer.lr=0.5")
    assert "2 problems" in str(caught.value)
    assert "seed: 3 in the checkpoint, 4 now" in str(caught.value)
    assert "optimizer.lr: 0.01 in the checkpoint, 0.5 now" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        "name=other",
        "output.checkpoint_every=3",
        "output.keep_every=4",
        "guard.max_skips=9",
        "guard.norm_ratio=50",
        "evaluation.keep_best=''",
    ],
)
def test_what_the_weights_do_not_depend_on_may_change(toy_file, half, whole, change):
    found, notes = resumed(toy_file, half, change)
    assert found.steps == 12
    assert any(note.startswith(f"changed: {change.split('=')[0]}: ") for note in notes)
    ends = [(last(f) / "weights.safetensors").read_bytes() for f in (whole(), half)]
    assert ends[0] == ends[1]
    assert lines(whole()) == lines(half)


def test_other_evaluation_prompts_compare_with_the_model_before_training(toy_file, half, tmp_path):
    sets = ["evaluation.count=3", "output.images=2"]
    found, _ = resumed(toy_file, half, *sets)
    whole = straight(toy_file, sets, tmp_path / "whole")
    assert found.reward == whole.reward
    assert found.held_out == whole.held_out
    assert found.reward["before"]["n"] == 3
    pictures = [f / "samples" / "before_after.png" for f in (tmp_path / "whole", half)]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_an_evaluation_may_be_added_or_left_out(toy_file, tmp_path):
    for name, first, then in (
        ("added", ["evaluation.prompts=''", "evaluation.keep_best=''"], []),
        ("left-out", [], ["evaluation.prompts=''", "evaluation.keep_best=''"]),
    ):
        seeded()
        train(compose(toy_file, first), tmp_path / name, Told(5))
        found, _ = resumed(toy_file, tmp_path / name, *then)
        assert bool(found.reward) == (name == "added")


def test_steps_may_change_but_not_below_what_is_done_nor_under_a_cosine(toy_file, half, tmp_path):
    with pytest.raises(
        InputError, match="steps: 12 in the checkpoint, 4 now, and 5 steps are done"
    ):
        resumed(toy_file, half, "steps=4")
    found, _ = resumed(toy_file, half, "steps=7")
    assert found.steps == 7
    seeded()
    train(compose(toy_file, ["optimizer.schedule=cosine"]), tmp_path / "cosine", Told(5))
    with pytest.raises(
        InputError, match=r"steps: 12 in .*, 14 now; a cosine schedule depends on it"
    ):
        resumed(toy_file, tmp_path / "cosine", "optimizer.schedule=cosine", "steps=14")


def test_a_prompt_list_may_move_but_not_change(toy_file, half, tmp_path):
    for name in ("toy.toml", "prompts.txt", "eval.txt"):
        shutil.copy(toy_file.with_name(name), tmp_path / name)
    (tmp_path / "prompts.txt").write_text("other\n")
    with pytest.raises(InputError, match=r"prompts\.file: .* holds other prompts than before"):
        resumed(tmp_path / "toy.toml", half)
    shutil.copy(toy_file.with_name("prompts.txt"), tmp_path / "prompts.txt")
    found, _ = resumed(tmp_path / "toy.toml", half)
    assert found.steps == 12


def test_another_version_of_a_plugin_is_reported(toy_file, half):
    # Whichever copy of the toys is found first, other folders' tests have installed theirs.
    info = "toy_plugins-1.0.dist-info/METADATA"
    metadata = Path(distribution("toy-plugins").locate_file(info))
    before = metadata.read_text()
    metadata.write_text(before.replace("Version: 1.0", "Version: 2.0"))
    try:
        found, notes = resumed(toy_file, half)
    finally:
        metadata.write_text(before)
    assert "toy-plugins 1.0 wrote the checkpoint, 2.0 goes on with it; results may differ" in notes
    assert found.steps == 12


def test_the_command_line_resumes_the_resolved_file_of_the_run_itself(half, whole):
    arguments = ["run", str(half / "run.toml"), "--out", str(half), "--resume"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "resumed from" in result.output
    assert_same_end(whole(), half)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume"], "it needs --out DIR"),
        (["--resume", "--out", "nowhere"], "no such folder"),
        (["--resume", "--out", "empty"], "it holds no checkpoint to resume from"),
        (["--resume", "--out", "file"], "no such folder"),
    ],
)
def test_nothing_to_resume_is_said(toy_file, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["run", str(toy_file), *arguments])
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output
    assert not list((tmp_path / "empty").iterdir())


def test_a_used_folder_is_refused_without_resume_and_says_how(toy_file, half):
    with pytest.raises(InputError, match=r"already holds a run; nothing was written; --resume"):
        train(compose(toy_file, []), half)


def test_the_state_of_a_checkpoint_is_plain_json(half):
    state = json.loads((last(half) / "state.json").read_text())
    assert state["step"] == 5
    assert state["identity"]["table"]["optimizer"]["lr"] == 0.01
    assert set(state["identity"]["versions"]) >= {"headwater", "torch", "toy-plugins"}
