"""Pixels as ImageReward, ReFL and Qwen2-VL make them."""

import numpy as np
import pytest
import torch
from rewards_vlm.imagereward_cases import FOLDER, image
from safetensors.torch import load_file

from headwater_rewards_vlm.preprocessing import (
    STD,
    imagereward_pixels,
    qwen_patches,
    qwen_size,
)

RECORDED = load_file(FOLDER / "imagereward_pixels.safetensors")
PLACES = np.random.RandomState(77).randint(0, 3 * 224 * 224, size=200, dtype=np.int64)


def compared(found, key):
    """Largest difference at 200 places, of the channels' statistics, and of block means."""
    flat = found.flatten()[torch.from_numpy(PLACES)]
    moments = (found.mean((1, 2)), found.std((1, 2), correction=0))
    ends = (found.amin((1, 2)), found.amax((1, 2)))
    stats = torch.stack([*moments, *ends])
    difference = {
        "samples": float((flat - RECORDED[f"{key}/samples"].flatten()).abs().max()),
        "stats": float((stats - RECORDED[f"{key}/stats"].view(4, 3)).abs().max()),
    }
    if f"{key}/blocks" in RECORDED:
        blocks = torch.nn.functional.avg_pool2d(found[None], 8)[0]
        difference["blocks"] = float((blocks - RECORDED[f"{key}/blocks"]).abs().max())
    return difference


def cases(variant):
    return sorted({k.split("/")[1] for k in RECORDED if k.startswith(variant)})


@pytest.mark.parametrize("name", cases("imagereward_refl_tensor"))
def test_float_images_are_prepared_as_in_refl(name):
    found = imagereward_pixels(image(name))[0]
    difference = compared(found, f"imagereward_refl_tensor/{name}")
    assert max(difference.values()) < 2e-5


@pytest.mark.parametrize("name", cases("imagereward_pil"))
def test_pictures_are_prepared_as_by_the_original(name):
    """The same Pillow gives the same levels; another may differ by one of them."""
    found = imagereward_pixels(image(name), rounding="pillow")[0]
    difference = compared(found, f"imagereward_pil/{name}")
    assert difference.pop("samples") < 1.01 / 255 / min(STD)
    assert max(difference.values()) < 2e-4


def transformers_patches(levels, pixels):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": pixels, "longest_edge": pixels})
    made = processor(images=[levels], return_tensors="pt")
    return made["pixel_values"], tuple(made["image_grid_thw"][0].tolist())


@pytest.mark.parametrize("name", ["i0", "i3", "i4", "i8", "s4", "s5"])
def test_patches_are_those_of_transformers_own_processor(name):
    pixels = 256 * 28 * 28
    levels = (image(name)[0] * 255).round().byte().permute(1, 2, 0).numpy()
    wanted, grid = transformers_patches(levels, pixels)
    size = qwen_size(*image(name).shape[-2:], pixels)
    assert (1, size[0] // 14, size[1] // 14) == grid
    found = qwen_patches(image(name), size, rounding="pillow")
    assert found.shape == (1, *wanted.shape)
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-6)


def test_the_float_path_of_patches_stays_near_and_carries_the_gradient():
    given = image("s0").requires_grad_()
    size = qwen_size(64, 48, 16 * 28 * 28)
    plain = qwen_patches(given, size)
    rounded = qwen_patches(given.detach(), size, rounding="pillow")
    assert 0 < float((plain.detach() - rounded).abs().mean()) < 0.01
    (gradient,) = torch.autograd.grad(plain.sum(), given)
    # Each pixel of the resized image is in two frames, and resizing keeps a constant constant.
    total = 2 * size[0] * size[1] * sum(1 / s for s in STD)
    assert float(gradient.sum()) == pytest.approx(total, rel=1e-4)


def test_sizes_are_multiples_near_the_number_of_pixels():
    for height, width in ((512, 512), (1024, 1024), (30, 40), (100, 3000), (448, 448), (1, 199)):
        found = qwen_size(height, width, 256 * 28 * 28)
        assert all(side % 28 == 0 and side > 0 for side in found)
        if max(height, width) < 4 * min(height, width):
            assert 0.85 < found[0] * found[1] / (256 * 28 * 28) < 1.2
    assert qwen_size(512, 512, 256 * 28 * 28) == (448, 448)
    with pytest.raises(ValueError, match="too long"):
        qwen_size(1, 500, 256 * 28 * 28)
