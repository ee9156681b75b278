"""Wrong, damaged and missing weights: one paragraph each, and no code of a pickle is run."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwater.errors import PluginError
from headwater.protocols import LoadContext
from headwater.tensor_files import read_tensors, save_safetensors
from headwater_rewards_clip import weights
from headwater_rewards_clip.rewards import CLIP_L, HPS, Aesthetic, HpsV21, PickScore
from headwater_rewards_clip.weights import load_clip, path_problem


def told(call):
    """The one paragraph of an error."""
    with pytest.raises((ValueError, PluginError)) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


class Runs:
    """A pickle of it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path):
    (tmp_path / "bad.pt").write_bytes(pickle.dumps({"a": Runs(tmp_path / "ran")}))
    torch.save({"state_dict": {"a": Runs(tmp_path / "ran")}}, tmp_path / "worse.pt")
    for name in ("bad.pt", "worse.pt"):
        assert "cannot be read as named tensors" in told(lambda n=name: read_tensors(tmp_path / n))
    assert not (tmp_path / "ran").exists()


def test_what_is_no_checkpoint_is_told(tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    torch.save({"state_dict": {"a": torch.zeros(1), "epoch": 3}}, tmp_path / "mixed.pt")
    torch.save({}, tmp_path / "none.pt")
    for name in ("text.pt", "empty.safetensors"):
        assert f"{name} cannot be read" in told(lambda n=name: read_tensors(tmp_path / n))
    assert "no named tensors but a list" in told(lambda: read_tensors(tmp_path / "list.pt"))
    assert "no named tensors but a dict" in told(lambda: read_tensors(tmp_path / "none.pt"))
    assert "more than tensors: epoch" in told(lambda: read_tensors(tmp_path / "mixed.pt"))


def test_a_truncated_checkpoint_is_told(small, tmp_path):
    for source, name in ((small.pickle, "cut.pt"), (small.file, "cut.safetensors")):
        whole = Path(source).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        assert "damaged" in told(lambda n=name: read_tensors(tmp_path / n))


def test_missing_files_name_the_release_its_size_and_its_place():
    text = told(lambda: HpsV21(model="/nowhere/HPS_v2.1_compressed.pt").load(LoadContext("cpu")))
    for part in (
        "/nowhere/HPS",
        "HPS_v2.1_compressed.pt of xswu/HPSv2",
        "2 GB",
        "hf download",
        "set model to",
    ):
        assert part in text
    text = path_problem("/nowhere", CLIP_L)
    for part in ("openai/clip-vit-large-patch14", "1.71 GB", "--local-dir FOLDER"):
        assert part in text
    text = told(lambda: weights.read_head("/nowhere/head.pth"))
    for part in ("sac+logos+ava1-l14-linearMSE.pth", "3.7 MB", "improved-aesthetic-predictor"):
        assert part in text


def test_weights_that_are_not_in_the_hubs_cache_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    text = told(lambda: load_clip(HPS.hub, HPS))
    assert "xswu/HPSv2 is neither in the hub's cache nor could it be had from the hub" in text
    assert "2 GB" in text
    text = told(lambda: load_clip("someone/other", CLIP_L))
    assert "someone/other is neither" in text
    assert "set model to its folder" in text


def test_a_hub_id_is_not_looked_up_and_a_wrong_path_is_told_early(tmp_path):
    assert path_problem("xswu/HPSv2", HPS) == ""
    assert "no hub id" in path_problem("nowhere", HPS)
    assert "no hub id" in path_problem("a/b/c", HPS)
    assert "no file or folder" in path_problem("weights/other.pt", HPS)
    assert "neither config.json nor HPS_v2.1" in path_problem(str(tmp_path), HPS)
    (tmp_path / "HPS_v2.1_compressed.pt").write_bytes(b"")
    assert path_problem(str(tmp_path), HPS) == ""


def test_the_released_file_is_found_in_its_folder(small, tmp_path):
    shutil.copy(small.pickle, tmp_path / "HPS_v2.1_compressed.pt")
    load_clip(str(tmp_path), HPS, small.sizes)


def test_a_checkpoint_of_other_sizes_is_told(small):
    text = told(lambda: load_clip(small.pickle, HPS))
    assert f"{small.pickle} is not the CLIP model that is declared" in text
    assert "expected (1280, 3, 14, 14)" in text or "have another shape" in text


@pytest.mark.parametrize("fault", ["missing", "unknown", "misshapen"])
def test_a_folder_must_hold_the_whole_model(small, tmp_path, fault):
    shutil.copytree(small.folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    state = load_file(file)
    if fault == "missing":
        del state["visual_projection.weight"]
    elif fault == "unknown":
        state["vision_model.more"] = torch.zeros(1)
    else:
        state["visual_projection.weight"] = torch.zeros(3, 3)
    save_file(state, file, {"format": "pt"})
    text = told(lambda: load_clip(str(tmp_path / "model"), CLIP_L))
    assert str(tmp_path / "model") in text
    assert "visual_projection" in text or "vision_model.more" in text


def test_a_folder_without_weights_is_told(small, tmp_path):
    shutil.copytree(small.folder, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert "no loadable CLIP model" in told(lambda: load_clip(str(tmp_path / "model"), CLIP_L))


def test_a_pickle_is_rewritten_once_under_the_same_names(small, tmp_path):
    save_safetensors(small.pickle, tmp_path / "same.safetensors")
    found = load_file(tmp_path / "same.safetensors")
    assert found.keys() == small.state.keys()
    assert all(torch.equal(found[name], value) for name, value in small.state.items())


def test_a_head_of_another_width_is_told(small, tmp_path):
    from rewards_clip.test_rewards import aesthetic_layers, head_file

    head = head_file(tmp_path, aesthetic_layers(20))
    reward = Aesthetic(model=small.pickle, architecture=small.sizes, head=head)
    assert "features of 20 numbers, this CLIP model gives 16" in told(
        lambda: reward.load(LoadContext("cpu"))
    )


def test_the_models_own_tokenizer_is_wanted_where_clips_does_not_fit(small):
    reward = PickScore(model=small.pickle, architecture=small.sizes)
    text = told(lambda: reward.load(LoadContext("cpu")))
    assert "the tokenizer has 49408 tokens, the model knows 514; set tokenizer" in text
