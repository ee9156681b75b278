"""A decoded rollout is the image of the family's own diffusers pipeline."""

import pytest
import torch

from families.family_cases import FAMILIES, PROMPTS
from headwater.dynamics import Ode
from headwater.rollout import RolloutLoop
from headwater.types import Batch

CASES = [
    (name, guidance, size)
    for name, family in FAMILIES.items()
    for guidance in family.guidances
    for size in ((32, 32), (24, 40))
]


def rollout_of(plugin, height, width, steps=4):
    batch = Batch(PROMPTS, plugin.encode(PROMPTS), (11, 12), (0, 1), height, width, steps=steps)
    return RolloutLoop().sample_rollout(plugin, Ode(), batch)


@pytest.mark.parametrize(("name", "guidance", "size"), CASES)
def test_the_decoded_rollout_is_the_pipelines_own_image(folders, name, guidance, size):
    family, folder = FAMILIES[name], folders(name)
    plugin = family.load(folder, guidance)
    rollout = rollout_of(plugin, *size)
    with torch.no_grad():
        got = plugin.decode(rollout.state(4))
        expected = family.call(family.own_pipeline(folder), rollout, guidance, *size)
    assert got.shape == (2, 3, *size)
    assert float((got - expected).abs().max()) <= 1e-5
    assert float(got.std()) > 0.01, "an image that is flat would prove nothing"


def test_sd3_on_an_even_grid_shifted_once(folders):
    plugin = FAMILIES["sd3"].load(folders("sd3"), schedule="linear")
    sigmas = plugin.sigmas(4, (4, 16, 16))
    assert torch.allclose(sigmas, torch.tensor([1.0, 0.9, 0.75, 0.5, 0.0]), atol=1e-6)
    twice = FAMILIES["sd3"].load(folders("sd3")).sigmas(4, (4, 16, 16))
    assert twice[3] < 0.01


def test_guidance_0_and_1_are_none_on_z_image(folders):
    family, folder = FAMILIES["z-image"], folders("z-image")
    plugins = [family.load(folder, guidance) for guidance in (0.0, 1.0)]
    assert [p.network_evaluations(p._guidance) for p in plugins] == [(1, 1), (1, 1)]
    assert [p.encode(PROMPTS).negative for p in plugins] == [None, None]
    ends = [rollout_of(plugin, 32, 32).state(4) for plugin in plugins]
    assert torch.equal(*ends)
