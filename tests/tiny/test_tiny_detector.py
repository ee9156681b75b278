"""Drawings, their flaws, and the detector that judges them."""

import pytest
import torch

from headwater_tiny.detector import judge
from headwater_tiny.draw import draw, sample_layouts
from headwater_tiny.flaws import IMAGE_FLAWS, LAYOUT_FLAWS, degrade, spoil, unmet
from headwater_tiny.grammar import CATEGORIES, describe, sample_scene

# Share of flawed drawings that must be found wrong. A drawing halfway between two shapes, or
# softly blurred, may still be nearest to what it should be.
CAUGHT = {"deform": 0.6, "blur": 0.6, "blend": 0.9, "noise": 0.95}


@pytest.fixture(scope="module")
def clean():
    generator = torch.Generator().manual_seed(3)
    scenes = [sample_scene(generator) for _ in range(400)]
    layouts = sample_layouts(scenes, generator)
    return scenes, layouts, draw(layouts)


def test_a_clean_drawing_is_found_right_in_every_attribute(clean):
    scenes, _, images = clean
    verdict = judge(images, scenes)
    assert verdict.correct.eq(1).all() and verdict.fraction.eq(1).all()
    for name, values in verdict.attributes.items():
        assert values[~values.isnan()].eq(1).all(), name
        assert not values.isnan().all(), name
    assert set(verdict.by_category()) == set(CATEGORIES)


@pytest.mark.parametrize("kind", LAYOUT_FLAWS)
def test_a_flawed_layout_is_found_wrong(clean, kind):
    scenes, layouts, _ = clean
    generator = torch.Generator().manual_seed(4)
    spoilt = [(spoil(p, s, kind, generator), s) for p, s in zip(layouts, scenes, strict=True)]
    spoilt = [(layout, scene) for layout, scene in spoilt if layout is not None]
    assert len(spoilt) >= 20
    verdict = judge(draw([p for p, _ in spoilt]), [s for _, s in spoilt])
    assert 1 - verdict.correct.mean() >= CAUGHT.get(kind, 1.0)
    assert verdict.fraction.mean() < 1


@pytest.mark.parametrize("kind", IMAGE_FLAWS)
def test_a_degraded_image_is_found_wrong(clean, kind):
    scenes, _, images = clean
    generator = torch.Generator().manual_seed(5)
    spoilt = degrade(images, images.roll(1, dims=0), kind, generator)
    assert 1 - judge(spoilt, scenes).correct.mean() >= CAUGHT[kind]


def test_drawings_of_other_prompts_are_found_wrong(clean):
    scenes, layouts, images = clean
    moved = scenes[1:] + scenes[:1]
    fits = [unmet(layout, scene) == 0 for layout, scene in zip(layouts, moved, strict=True)]
    assert judge(images, moved).correct.bool().tolist() == fits
    assert sum(fits) < 10


def test_prompts_are_judged_as_their_scenes(clean):
    scenes, _, images = clean
    texts = [describe(scene) for scene in scenes]
    shifted = images.roll(1, dims=0)
    assert torch.equal(judge(shifted, texts).fraction, judge(shifted, scenes).fraction)


def test_a_small_amount_of_noise_changes_no_verdict(clean):
    scenes, _, images = clean
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(6))
    # 0.02 is the root mean square error at 34 dB, worse than the autoencoder's.
    assert judge((images + 0.02 * noise).clamp(0, 1), scenes).correct.mean() == 1


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match="expected images"):
        judge(torch.zeros(1, 3, 64, 64), ["a red circle on a white background"])
