"""Wrong folders, sizes and guidance are told before anything heavy loads."""

import shutil

import pytest
import torch

from families.family_cases import FAMILIES
from families.test_training import PROMPTS, TOML
from headwater.composition import compose
from headwater.errors import InputError
from headwater.families import folder
from headwater.protocols import LoadContext
from headwater.testing import pipelines as tiny_pipelines
from headwater.types import Prompt


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Compose a run of a family in a folder; any weight that is read is an error."""
    (tmp_path / "prompts.txt").write_text(PROMPTS)

    def heavy(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr("safetensors.torch.load_file", heavy)
    monkeypatch.setattr(torch, "load", heavy)

    def compose_(name, folder, *sets, guidance=1.0):
        path = tmp_path / "run.toml"
        path.write_text(TOML.format(name=name, folder=folder, guidance=guidance))
        return compose(path, sets)

    return compose_


@pytest.mark.parametrize("name", FAMILIES)
def test_a_good_folder_passes(folders, check, name):
    assert check(name, folders(name)).backbone.entry.name == name


def test_a_missing_folder_and_a_name_that_is_no_hub_id(check, tmp_path):
    with pytest.raises(InputError, match="no folder 'nowhere', and it is no hub id"):
        check("sd3", "nowhere")
    with pytest.raises(InputError, match="json is missing"):
        check("sd3", tmp_path / "empty")


def test_a_folder_of_another_family(folders, check):
    with pytest.raises(InputError, match="holds a FluxPipeline, expected StableDiffusion3"):
        check("sd3", folders("flux"))


def test_a_missing_component(folders, check, tmp_path):
    shutil.copytree(folders("flux"), tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "vae")
    with pytest.raises(InputError, match="has no vae/"):
        check("flux", tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "size"), [("sd3", 34), ("flux", 30), ("qwen-image", 33), ("z-image", 30)]
)
def test_a_size_that_does_not_divide(folders, check, name, size):
    with pytest.raises(InputError, match=rf"divide by 4, \[rollout\] height is {size}"):
        check(name, folders(name), f"rollout.height={size}")


@pytest.mark.parametrize(("name", "most"), [("sd3", 64), ("z-image", 128)])
def test_a_size_beyond_the_positions(folders, check, name, most):
    with pytest.raises(InputError) as error:  # the reward of these runs takes 32 x 32 alone
        check(name, folders(name), f"rollout.height={most}")
    assert "positions" not in str(error.value)
    with pytest.raises(InputError, match=f"positions end at {most} pixels"):
        check(name, folders(name), f"rollout.height={2 * most}")


def test_guidance_on_a_distilled_model(check, tmp_path):
    folder = tiny_pipelines.saved(tiny_pipelines.flux, tmp_path / "schnell", guidance=False)
    with pytest.raises(InputError, match="distilled and takes no guidance"):
        check("flux", folder, guidance=3.5)
    folder = tiny_pipelines.saved(tiny_pipelines.flux2, tmp_path / "klein", distilled=True)
    with pytest.raises(InputError, match="distilled and takes no guidance"):
        check("flux2", folder, guidance=4.0)


def test_z_image_turbo_is_known_by_its_id_its_shift_or_the_users_word(folders, check, tmp_path):
    turbo = tiny_pipelines.saved(tiny_pipelines.z_image, tmp_path / "turbo", shift=3.0)
    for model in ("Tongyi-MAI/Z-Image-Turbo", turbo):
        with pytest.raises(InputError, match="distilled and takes no guidance"):
            check("z-image", model, guidance=5.0)
        for none in (0.0, 1.0):
            check("z-image", model, guidance=none)
    check("z-image", turbo, "backbone.distilled=false", guidance=5.0)
    for model in ("Tongyi-MAI/Z-Image", folders("z-image")):
        check("z-image", model, guidance=5.0)
        with pytest.raises(InputError, match="distilled and takes no guidance"):
            check("z-image", model, "backbone.distilled=true", guidance=5.0)
    with pytest.raises(InputError, match=r"guidance of 1 \(none\) or more, got 0.5"):
        check("z-image", folders("z-image"), guidance=0.5)


def test_a_qwen_template_that_leaves_nothing_of_an_empty_negative(folders, check):
    folder = folders("qwen-image")
    bare = ["backbone.template='{}'", "backbone.template_tokens=0"]
    with pytest.raises(InputError, match=r"leaves no token of the prompt ''.*negative"):
        check("qwen-image", folder, *bare, guidance=4.0)
    check("qwen-image", folder, *bare, guidance=1.0)  # asks for no negative prompt
    for template, tokens in (("{}", 0), ("{}.", 1), ("{}.", 50)):
        settings = {"template": template, "template_tokens": tokens}
        with pytest.raises(InputError, match="leaves no token of the prompt ''"):
            FAMILIES["qwen-image"].load(folder, prompts=(Prompt("a" * 60),), **settings)


@pytest.mark.parametrize("template", ["no place", "{} and {}", "{name}", "{", "{0}"])
def test_a_qwen_template_without_one_place_for_the_prompt(template):
    with pytest.raises(ValueError, match=r"expected text with one \{\} for the prompt"):
        FAMILIES["qwen-image"].plugin("model", template=template)


@pytest.mark.parametrize("how", ["missing", "truncated", "garbage"])
@pytest.mark.parametrize("part", ["transformer", "vae"])
def test_damaged_weights_are_one_paragraph(folders, tmp_path, part, how):
    model = tmp_path / "model"
    shutil.copytree(folders("sd3"), model)
    (weights,) = (model / part).glob("*.safetensors")
    if how == "missing":
        weights.unlink()
    else:
        whole = weights.read_bytes()
        weights.write_bytes(whole[:1000] if how == "truncated" else b"\x00" * len(whole))
    plugin = FAMILIES["sd3"].plugin(str(model), dtype="float32", max_length=24)
    parts = ("transformer", "vae", "scheduler", *plugin.encoders)
    found = folder.problems_of(str(model), plugin.pipelines, parts)
    if how == "missing":
        assert found == [
            f"model: {model}/{part} holds no weights (*.safetensors); copy the whole pipeline folder"
        ]
        return
    assert found == []
    with pytest.raises(InputError, match="cannot be loaded") as error:
        plugin.load(LoadContext("cpu", prompts=()))
    assert len(str(error.value)) < 900


def test_a_reward_that_cannot_read_the_prompts_says_so_before_loading(folders, tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\n")
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
name = "cat"
seed = 1
steps = 1
[backbone]
use = "sd3"
model = "{folders("sd3")}"
[prompts]
file = "prompts.txt"
per_step = 1
micro_batch = 1
[rollout]
height = 32
width = 32
[reward.preference]
use = "tiny-preference"
[algorithm]
use = "direct"
[estimator]
use = "leapalign"
"""
    )
    with pytest.raises(InputError, match="unknown word 'cat'"):
        compose(path)
