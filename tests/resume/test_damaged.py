"""Checkpoints that are not what was written: each is named and skipped, and runs no code."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from resume_runs import Told, assert_same_end, last, seeded
from safetensors.torch import load_file, save_file

from headwater import checkpoints
from headwater.composition import compose
from headwater.errors import DamagedError, InputError
from headwater.loop import train
from headwater.sampling import sample

FILES = [
    *("weights", "ema", "optimizer", "plugins", "generators", "first", "last"),
    *("state", "manifest"),
]
SHORT = ("weights", "optimizer", "state", "manifest")


class Break(Told):
    """Ends the run at once, as a fault would, and lets no further checkpoint be written."""

    def after_step(self, step, metrics, skipped):
        if step == 7:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def broken(toy_file, disk):
    """A run that broke after step 7, with whole checkpoints at 2, 4 and 6."""
    out = disk / "broken"
    seeded()
    with pytest.raises(KeyboardInterrupt):
        train(compose(toy_file, SETS), out, Break())
    assert [p.name for p in checkpoints.found(out / "checkpoints")] == KEPT
    return out


@pytest.fixture
def two(broken, tmp_path):
    """A copy of it that may be damaged."""
    return shutil.copytree(broken, tmp_path / "out")


SETS = ["output.keep_every=2", "evaluation.every=4"]
KEPT = ["step-000002", "step-000004", "step-000006"]


def file_of(folder, stem):
    (found,) = folder.glob(f"{stem}.*")
    return found


def listed(folder):
    """Write a manifest that fits what is there now, as a forger would."""
    files = {}
    for path in folder.iterdir():
        if path.name != "manifest.json":
            content = path.read_bytes()
            files[path.name] = {
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


@pytest.fixture
def named_and_skipped(toy_file, two, whole):
    def check(said):
        assert_named_and_skipped(toy_file, two, whole(*SETS), said)

    return check


def assert_named_and_skipped(toy_file, out, whole, said):
    """Resuming names step 6, goes on from step 4, and ends as the uninterrupted run."""
    progress = Told()
    summary = train(compose(toy_file, SETS), out, progress, resume=True)
    skipped = [note for note in progress.notes if "step-000006 is damaged and skipped" in note]
    assert len(skipped) == 1
    assert said in skipped[0]
    assert any(
        note.endswith("resumed from " + str(out / "checkpoints" / "step-000004"))
        for note in progress.notes
    )
    assert summary.steps == 12
    assert_same_end(whole, out)
    assert not checkpoints.damage(out / "checkpoints" / "step-000006"), "it was written anew"


@pytest.mark.parametrize(
    "stem",
    [stem if stem in SHORT else pytest.param(stem, marks=pytest.mark.long) for stem in FILES],
)
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_a_damaged_file(two, named_and_skipped, stem, how):
    path = file_of(last(two), stem)
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        said = path.name
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
        said = path.name
    else:
        place = content.index(b'"sha256": "') + 12 if stem == "manifest" else len(content) // 2
        content[place] ^= 1
        path.write_bytes(content)
        said = "differs" if stem != "manifest" else ""
    named_and_skipped(said)


@pytest.mark.parametrize("stem", ["weights", "optimizer", "plugins", "generators"])
def test_a_pickle_in_place_of_tensors_is_never_opened(two, named_and_skipped, tmp_path, stem):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "code-was-run"),))

    path = file_of(last(two), stem)
    for write in (lambda: path.write_bytes(pickle.dumps(Evil())), lambda: torch.save(Evil(), path)):
        write()
        listed(last(two))
        assert not checkpoints.damage(last(two)), "a forged manifest fits"
        with pytest.raises(DamagedError, match="no safetensors file"):
            checkpoints.read_tensors(last(two), stem)
    named_and_skipped("no safetensors file")
    assert not (tmp_path / "code-was-run").exists()


@pytest.mark.parametrize(
    "name", ["../../run.toml", "/etc/hostname", "a/../weights.safetensors", "x.pt", ".."]
)
def test_a_manifest_that_names_another_place(two, named_and_skipped, name):
    path = last(two) / "manifest.json"
    table = json.loads(path.read_text())
    table["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    path.write_text(json.dumps(table))
    named_and_skipped("which is no file of a checkpoint")


@pytest.mark.parametrize("stem", ["weights", "state", "manifest"])
def test_a_link_out_of_the_folder(two, named_and_skipped, tmp_path, stem):
    path = file_of(last(two), stem)
    shutil.copy(path, tmp_path / "elsewhere")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    named_and_skipped("no plain file")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: {n: v.float() for n, v in t.items()}, "torch.float32"),
        (lambda t: {n: v[..., :1] for n, v in t.items()}, "expected torch.float64"),
        (lambda t: dict(list(t.items())[1:]), "are not in both"),
        (lambda t: {**t, "more": torch.zeros(2)}, "are not in both"),
        (lambda t: {}, "are not in both"),
    ],
)
@pytest.mark.parametrize("stem", ["weights", "ema"])
def test_tensors_that_do_not_fit(two, named_and_skipped, stem, change, said):
    path = file_of(last(two), stem)
    save_file({n: v.contiguous() for n, v in change(load_file(path)).items()}, path)
    listed(last(two))
    named_and_skipped(said)


@pytest.mark.parametrize(
    ("stem", "change", "said"),
    [
        ("optimizer", lambda t: {n: v.float() for n, v in t.items()}, "optimizer: exp_avg"),
        (
            "optimizer",
            lambda t: {n.replace("inner", "other"): v for n, v in t.items()},
            "no trained",
        ),
        (
            "optimizer",
            lambda t: {n: v for n, v in t.items() if "exp_avg_sq" not in n},
            "optimizer: ",
        ),
        ("optimizer", lambda t: {}, "0 moments"),
        ("generators", lambda t: {**t, "torch": t["torch"][:9]}, "generators: torch"),
        ("generators", lambda t: {**t, "torch": t["torch"].float()}, "generators: torch"),
        ("generators", lambda t: {}, "KeyError"),
        ("first", lambda t: {"total": t["total"]}, "KeyError"),
    ],
)
def test_state_that_does_not_fit(two, named_and_skipped, stem, change, said):
    path = file_of(last(two), stem)
    save_file({n: v.contiguous() for n, v in change(load_file(path)).items()}, path)
    listed(last(two))
    named_and_skipped(said)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 7},
        {"step": "6"},
        {"policy_version": 99},
        {"policy_version": None},
        {"guard": {}},
        {"guard": {"norms": ["x"], "in_a_row": 0, "skipped": 0}},
        {"identity": None},
        {"identity": {"table": [], "prompts": "", "evaluation_prompts": "", "versions": {}}},
        {"plugins": []},
        {"evaluated_at": None},
        {"gradient_check": 3},
    ],
)
def test_a_state_with_odd_values(two, named_and_skipped, change):
    path = last(two) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    listed(last(two))
    named_and_skipped("")


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"format": 2}', '{"format": 1}', "\xff\xfe"]
)
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_json_that_is_none(two, named_and_skipped, name, text):
    (last(two) / name).write_text(text)
    if name == "state.json":
        listed(last(two))
    named_and_skipped(name)


def test_where_none_is_whole_each_is_named_and_nothing_is_written(toy_file, two):
    for path in checkpoints.found(two / "checkpoints"):
        (path / "weights.safetensors").write_bytes(b"")
    before = {p: p.read_bytes() for p in two.rglob("*") if p.is_file()}
    with pytest.raises(InputError) as caught:
        train(compose(toy_file, SETS), two, Told(), resume=True)
    text = str(caught.value)
    assert "no whole checkpoint is left" in text
    assert all(
        f"{name} is damaged and skipped: weights.safetensors has 0 bytes" in text for name in KEPT
    )
    assert {p: p.read_bytes() for p in two.rglob("*") if p.is_file()} == before


def test_a_lost_best_checkpoint_is_said_and_another_is_found(toy_file, tmp_path):
    out = tmp_path / "out"
    seeded()
    train(compose(toy_file, ["steps=7"]), out)
    best = json.loads((last(out) / "state.json").read_text())["best"]
    assert best != last(out).name
    shutil.rmtree(out / "checkpoints" / best)
    progress = Told()
    train(compose(toy_file, []), out, progress, resume=True)
    assert any(f"the best checkpoint, {best}, is lost" in note for note in progress.notes)
    assert (
        out / "checkpoints" / json.loads((last(out) / "state.json").read_text())["best"]
    ).is_dir()


def test_sampling_skips_a_damaged_one_and_refuses_one_that_was_asked_for(two, tmp_path):
    path = last(two) / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="step-000006 is damaged and skipped"):
        drawn = sample(two, ["p"], 1, 0, "last", tmp_path / "a.png")
    other = sample_quietly(two, tmp_path / "b.png", "4")
    assert Path(drawn).read_bytes() == other.read_bytes()
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(InputError, match="damaged"):
        (last(two) / "ema.safetensors").unlink()
        sample(two, ["p"], 1, 0, "6", tmp_path / "c.png")


def sample_quietly(two, target, name):
    with pytest.warns(UserWarning, match="skipped"):
        return sample(two, ["p"], 1, 0, name, target)
