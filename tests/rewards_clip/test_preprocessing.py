"""Pixels of every variant against recordings of the originals, and against PIL itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from rewards_clip.clip_cases import as_images, case_image, picture, recorded

from headwater_rewards_clip import preprocessing

hps, openai = preprocessing.hps_pixels, preprocessing.openai_pixels
hub, bilinear = preprocessing.transformers_pixels, preprocessing.bilinear_pixels
LEVEL = 1 / 255 / min(preprocessing.STD)  # one 8-bit level in normalised pixels
# Variant: our form, its settings, largest difference and part of the values that may have one.
# Float paths differ by rounding of the last bit; pictures by one level where PIL's fixed-point
# arithmetic meets a tie.
FLOAT, PICTURE = (2e-6, 0.0), (1.01 * LEVEL, 0.005)
VARIANTS = {
    "hps_val_pil": (hps, {}, FLOAT),
    "flowbp_hps_tensor": (hps, {}, FLOAT),
    "hps_val_pil_noantialias": (hps, {"antialias": False}, FLOAT),
    "hps_resize_on_pil": (hps, {"rounding": "two-pass"}, PICTURE),
    "openclip_val_pil": (openai, {"rounding": "two-pass"}, PICTURE),
    "imagereward_pil": (openai, {"rounding": "two-pass"}, PICTURE),
    "imagereward_refl_tensor": (openai, {}, FLOAT),
    "clipscore_tensor_bilinear": (bilinear, {}, FLOAT),
    "hf_clip224_torchvision": (hub, {"rounding": "two-pass-width-first"}, PICTURE),
    "hf_clip224_pil": (hub, {"rounding": "two-pass"}, PICTURE),
    "hf_clip336_torchvision": (hub, {"size": 336, "rounding": "two-pass-width-first"}, PICTURE),
    "hf_clip336_pil": (hub, {"size": 336, "rounding": "two-pass"}, PICTURE),
}


@pytest.fixture(scope="module")
def cases():
    return recorded("preprocess")


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_gives_the_recorded_pixels(cases, variant):
    form, settings, (most, part) = VARIANTS[variant]
    names = sorted({key.split("/")[1] for key in cases if key.startswith(f"{variant}/")})
    assert len(names) >= 5
    off, count = 0, 0
    for name in names:
        pixels = form(case_image(name), **settings)[0]
        where = np.random.RandomState(77).randint(0, pixels.numel(), size=200, dtype=np.int64)
        error = (
            pixels.flatten()[torch.from_numpy(where)] - cases[f"{variant}/{name}/samples"]
        ).abs()
        assert float(error.max()) <= most
        off, count = off + int((error > 2e-6).sum()), count + 200
        stats = [pixels.mean((1, 2)), pixels.flatten(1).std(1, unbiased=False)]
        stats = torch.stack([*stats, pixels.amin((1, 2)), pixels.amax((1, 2))])
        assert float((stats - cases[f"{variant}/{name}/stats"]).abs().max()) < 1e-4
        if f"{variant}/{name}/blocks" in cases:
            blocks = F.avg_pool2d(pixels, 8)
            assert float((blocks - cases[f"{variant}/{name}/blocks"]).abs().max()) < 2e-3
    assert off / count <= part


SIZES = [(97, 33), (500, 120), (120, 500), (225, 331), (331, 226), (64, 64), (30, 200), (640, 480)]


def pil_pixels(levels, size, floored):
    """PIL's own resize and crop, normalised here."""
    height, width = levels.shape[:2]
    short = min(height, width)
    h, w = int(size * height / short), int(size * width / short)
    resized = np.array(Image.fromarray(levels).resize((w, h), Image.Resampling.BICUBIC))
    top, left = (
        ((h - size) // 2, (w - size) // 2)
        if floored
        else (round((h - size) / 2), round((w - size) / 2))
    )
    out = as_images(resized[top : top + size, left : left + size])
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocessing.MEAN, preprocessing.STD))
    return (out - mean) / std


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("size", [32, 224])
def test_two_passes_are_pils_resize_at_other_sizes(height, width, size):
    levels = picture(height + width, height, width)
    for form, floored in ((openai, False), (hub, True)):
        error = (
            form(as_images(levels), size, rounding="two-pass") - pil_pixels(levels, size, floored)
        ).abs()
        assert float(error.max()) <= 1.01 * LEVEL
        assert float((error > 0.5 * LEVEL).float().mean()) < 0.002


def test_the_order_of_the_passes_matters_for_a_tall_image_only():
    tall, wide = as_images(picture(5, 97, 33)), as_images(picture(5, 33, 97))
    first = [hub(x, 32, rounding="two-pass-width-first") for x in (tall, wide)]
    pillow = [hub(x, 32, rounding="two-pass") for x in (tall, wide)]
    assert float((first[0] - pillow[0]).abs().max()) > 3 * LEVEL
    assert torch.equal(first[1], pillow[1])


def test_the_crop_rounds_half_to_even_or_down():
    ramp = torch.linspace(0, 1, 11 * 8).view(1, 1, 11, 8).expand(1, 3, 11, 8)  # three rows too many
    even, floored = openai(ramp, 8), hub(ramp, 8)
    whole = preprocessing.normalised(ramp)
    assert torch.equal(even, whole[:, :, 2:10])  # 1.5 to 2
    assert torch.equal(floored, whole[:, :, 1:9])
    one = torch.linspace(0, 1, 9 * 8).view(1, 1, 9, 8).expand(1, 3, 9, 8)
    assert torch.equal(openai(one, 8), hub(one, 8))  # .5 to 0, as floored


def test_hps_pads_with_zeros_the_smaller_half_left_and_above():
    pixels = hps(torch.ones(1, 3, 64, 45), 32)  # 45 / 2 is 22.5, to even 22
    zero, one = (preprocessing.normalised(torch.full((1, 3, 1, 1), v)) for v in (0.0, 1.0))
    torch.testing.assert_close(pixels[..., :5], zero.expand(1, 3, 32, 5))
    torch.testing.assert_close(pixels[..., 5:27], one.expand(1, 3, 32, 22), rtol=0, atol=1e-5)
    torch.testing.assert_close(pixels[..., 27:], zero.expand(1, 3, 32, 5))


def test_an_image_of_full_length_is_padded_only_when_asked():
    image = case_image("i7")
    assert hps(image).shape == (1, 3, 224, 150)
    padded = hps(image, always_pad=True)
    assert padded.shape == (1, 3, 224, 224)
    assert torch.equal(padded[..., 37:187], hps(image))


@pytest.mark.parametrize("form", [hps, openai, hub, bilinear])
def test_pixels_equal_finite_differences_in_float64(form):
    generator = torch.Generator().manual_seed(1)
    image = 0.1 + 0.8 * torch.rand(1, 3, 13, 9, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: form(x, 8), image.requires_grad_())


@pytest.mark.parametrize("rounding", ["levels", "two-pass", "two-pass-width-first"])
@pytest.mark.parametrize("form", [hps, openai, hub])
def test_rounding_keeps_the_value_and_takes_the_plain_gradient(form, rounding):
    image = torch.rand(2, 3, 40, 52, generator=torch.Generator().manual_seed(2))
    weight = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    grads = []
    for kind in ("none", rounding):
        x = image.clone().requires_grad_()
        y = form(x, 16, rounding=kind)
        (y * weight).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(y.detach(), form(image, 16, rounding=rounding), rtol=0, atol=1e-6)
    assert float((y.detach() - form(image, 16)).abs().max()) > LEVEL / 10  # something was rounded


def test_a_batch_is_its_images_one_by_one():
    images = torch.rand(3, 3, 50, 30, generator=torch.Generator().manual_seed(4))
    for form in (hps, openai, hub, bilinear):
        torch.testing.assert_close(form(images, 16), torch.cat([form(x[None], 16) for x in images]))


def test_half_images_are_prepared_in_float32():
    images = torch.rand(1, 3, 20, 20).bfloat16()
    assert torch.equal(hps(images, 8), hps(images.float(), 8))


@pytest.mark.parametrize(
    ("images", "what"),
    [
        (torch.rand(1, 4, 8, 8), r"expected images \(B, 3, H, W\), got \(1, 4, 8, 8\)"),
        (torch.rand(3, 8, 8), "expected images"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "as floats, got torch.uint8"),
        (torch.rand(1, 3, 2000, 2), "no pixel left"),
    ],
)
def test_what_is_no_image_is_refused(images, what):
    with pytest.raises(ValueError, match=what):
        hps(images, 16)


def test_settings_that_exclude_each_other_are_refused():
    image = torch.rand(1, 3, 8, 8)
    with pytest.raises(ValueError, match="always resized with antialias"):
        hps(image, 4, antialias=False, rounding="two-pass")
    with pytest.raises(ValueError, match="bilinear form takes tensors"):
        bilinear(image, 4, rounding="two-pass")
