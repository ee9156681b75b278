"""The backbone `sd3` on a tiny random pipeline of the real classes, through its real loading."""

import pytest
import torch
from headwater_sd3.backbone import Sd3

from headwater.dynamics import Ode
from headwater.protocols import LoadContext
from headwater.rollout import RolloutLoop
from headwater.types import Batch, Prompt, Request
from support import tiny_pipelines

PROMPTS = (Prompt("a cat", negative="blurry"), Prompt("two red dogs on a hill"))
SETTINGS = {"dtype": "float32", "max_length": 24, "rank": 4, "alpha": 6.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_pipelines.saved(tiny_pipelines.sd3, tmp_path_factory.mktemp("sd3") / "model")


def loaded(folder, guidance=3.5, **settings):
    plugin = Sd3(str(folder), **{**SETTINGS, **settings})
    plugin.load(LoadContext("cpu", guidance=guidance, seed=5, prompts=PROMPTS))
    return plugin


@pytest.mark.parametrize("guidance", [1.0, 3.5])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40)])
@pytest.mark.parametrize("schedule", ["diffusers", "linear"])
def test_the_decoded_rollout_is_the_pipelines_own_image(folder, guidance, height, width, schedule):
    from diffusers import StableDiffusion3Pipeline

    plugin = loaded(folder, guidance, schedule=schedule)
    batch = Batch(PROMPTS, plugin.encode(PROMPTS), (11, 12), (0, 1), height, width, steps=4)
    rollout = RolloutLoop().sample_rollout(plugin, Ode(), batch)
    pipeline = StableDiffusion3Pipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    even = None if schedule == "diffusers" else [1, 0.75, 0.5, 0.25]
    with torch.no_grad():
        expected = pipeline(
            prompt=[p.text for p in PROMPTS],
            negative_prompt=[p.negative for p in PROMPTS],
            height=height,
            width=width,
            num_inference_steps=4,
            sigmas=even,
            guidance_scale=guidance,
            latents=rollout.state(0).clone(),
            max_sequence_length=24,
            output_type="pt",
        ).images
    got = plugin.decode(rollout.state(4))
    assert got.shape == (2, 3, height, width)
    assert float((got - expected).abs().max()) <= 1e-5
    assert float(got.std()) > 0.01, "an image that is flat would prove nothing"
