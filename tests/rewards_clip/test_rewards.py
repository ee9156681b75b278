"""The rewards as a run uses them: loaded from files, scored on images and prompts."""

import math
from itertools import pairwise

import pytest
import torch
from rewards_clip.clip_cases import ORACLES, case_image, recorded, tiny
from rewards_clip.open_clip_form import encode_image, encode_text

from headwater.protocols import LoadContext
from headwater.types import Prompt
from headwater_rewards_clip.preprocessing import bilinear_pixels, hps_pixels, openai_pixels
from headwater_rewards_clip.preprocessing import transformers_pixels as hub_pixels
from headwater_rewards_clip.rewards import Aesthetic, ClipScore, HpsV21, PickScore
from headwater_rewards_clip.tokens import load_tokenizer, tokenize

TEXTS = ["a red cat", "“Fish &amp; chips” at night", ""]
KINDS = {
    "hpsv2.1": (HpsV21, lambda x: hps_pixels(x, 32, always_pad=True), True),
    "pickscore": (PickScore, lambda x: hub_pixels(x, 32), False),
    "clipscore": (ClipScore, lambda x: bilinear_pixels(x, 32), False),
}


def images(count=3, height=50, width=40, dtype=torch.float32):
    generator = torch.Generator().manual_seed(9)
    return 0.05 + 0.9 * torch.rand(count, 3, height, width, generator=generator, dtype=dtype)


def loaded(cls, small, **settings):
    settings = {"model": small.pickle, "architecture": small.sizes, **settings}
    if cls is not Aesthetic:
        settings.setdefault("tokenizer", small.tokenizer)
    reward = cls(**settings)
    reward.load(LoadContext("cpu"))
    return reward


def written_out(small, pixels, texts, clean):
    """Cosines by the network without transformers, float64."""
    state = {name: value.double() for name, value in small.state.items()}
    ids = tokenize(load_tokenizer(small.tokenizer, clean=clean), texts).ids
    image = encode_image(state, pixels.double(), 2, "gelu")
    text = encode_text(state, ids, 3, "gelu")
    return torch.nn.functional.cosine_similarity(image, text)


@pytest.mark.parametrize("name", KINDS)
def test_the_base_value_is_the_cosine_of_the_rewards_own_pixels_and_text(small, name):
    cls, pixels, clean = KINDS[name]
    reward = loaded(cls, small, dtype="float64")
    found = reward.rate(images(dtype=torch.float64), TEXTS)
    wanted = written_out(small, pixels(images(dtype=torch.float64)), TEXTS, clean)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["pickle", "file", "folder"])
def test_every_form_of_the_weights_gives_one_score(small, form):
    settings = {"model": getattr(small, form), "tokenizer": ""}
    if form == "folder":
        settings["architecture"] = "stated"
    else:
        settings["tokenizer"] = small.tokenizer
    for cls in (HpsV21, PickScore, ClipScore):
        found = loaded(cls, small, **settings).rate(images(), TEXTS)
        torch.testing.assert_close(found, loaded(cls, small).rate(images(), TEXTS))


def test_a_file_may_hold_transformers_names(small):
    state_file = f"{small.folder}/model.safetensors"
    found = loaded(HpsV21, small, model=state_file).rate(images(), TEXTS)
    torch.testing.assert_close(found, loaded(HpsV21, small).rate(images(), TEXTS))


def test_each_scale_is_the_cosine_in_other_units_and_so_is_its_margin(small):
    value = loaded(PickScore, small).rate(images(), TEXTS)
    forms = {
        "percent": 100 * value,
        "logit": 100 * value,  # exp(logit_scale) is 100 here
        "logit/26": 100 * value / 26,
        "logit/100": value,
        "(logit-18)/8": (100 * value - 18) / 8,
    }
    for scale, wanted in forms.items():
        reward = loaded(PickScore, small, scale=scale)
        torch.testing.assert_close(reward.rate(images(), TEXTS), wanted, rtol=1e-5, atol=1e-5)
    assert [HpsV21.margin, PickScore.margin, ClipScore.margin, Aesthetic.margin] == [
        0.55,
        0.4,
        0.5,
        10,
    ]
    margins = {scale: PickScore(scale=scale).margin for scale in forms}
    wanted = {
        "percent": 40,
        "logit": 40,
        "logit/26": 40 / 26,
        "logit/100": 0.4,
        "(logit-18)/8": 2.75,
    }
    assert margins == pytest.approx(wanted)
    assert HpsV21().margin == 0.55


@pytest.mark.parametrize("name", [*KINDS, "aesthetic"])
def test_gradients_equal_finite_differences_in_float64(small, tmp_path, name):
    if name == "aesthetic":
        reward = loaded(Aesthetic, small, dtype="float64", head=head_file(tmp_path))
    else:
        reward = loaded(KINDS[name][0], small, dtype="float64")
    score = (
        (lambda x: reward.rate(x)) if name == "aesthetic" else (lambda x: reward.rate(x, TEXTS[:1]))
    )
    x = images(1, 20, 14, torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad(score(x).sum(), x)
    assert grad.isfinite().all()
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        step = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        step /= step.norm()
        with torch.no_grad():
            difference = (score(x + 1e-5 * step) - score(x - 1e-5 * step)).sum() / 2e-5
        # central differences: O(1e-10) of truncation, 1e-16 / 1e-5 of cancellation
        assert float((grad * step).sum()) == pytest.approx(float(difference), rel=1e-5, abs=1e-8)


def test_values_outside_the_range_are_clamped_and_get_no_gradient(small):
    reward = loaded(HpsV21, small)
    x = images(1)
    x[0, :, 3, 4], x[0, :, 5, 6] = -0.5, 1.5
    x.requires_grad_()
    score = reward.rate(x, TEXTS[:1])
    score.sum().backward()
    assert torch.equal(score.detach(), reward.rate(x.detach().clamp(0, 1), TEXTS[:1]))
    assert not x.grad[0, :, 3, 4].any()
    assert not x.grad[0, :, 5, 6].any()
    assert x.grad[0, :, 10, 10].all()


def test_the_rounded_path_scores_pictures_as_the_original_does(small):
    x = images()
    picture = (x * 255).round() / 255
    rounded = loaded(PickScore, small, rounding="two-pass", dtype="float64")
    found = rounded.rate(x, TEXTS)
    wanted = written_out(small, hub_pixels(picture, 32, rounding="two-pass"), TEXTS, clean=False)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-6)
    levels = loaded(HpsV21, small, rounding="levels").rate(x, TEXTS)
    torch.testing.assert_close(levels, loaded(HpsV21, small).rate(picture, TEXTS))
    x.requires_grad_()
    assert rounded.rate(x, TEXTS).requires_grad


def test_clipscore_may_resize_as_openai_does(small):
    found = loaded(ClipScore, small, resize="bicubic", dtype="float64").rate(images(), TEXTS)
    wanted = written_out(small, openai_pixels(images(), 32), TEXTS, clean=False)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_weights_score_near_single_ones_in_float32(small, dtype):
    half = loaded(HpsV21, small, dtype=dtype)
    x = images().requires_grad_()
    found = half.rate(x, TEXTS)
    assert found.dtype == torch.float32
    # bfloat16 keeps 8 bits: 0.4 % a product, over two random blocks
    torch.testing.assert_close(found, loaded(HpsV21, small).rate(x, TEXTS), rtol=0, atol=0.05)
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert grad.isfinite().all()


def test_a_square_of_the_models_size_and_odd_sizes_are_all_scored(small):
    for height, width in ((32, 32), (32, 20), (20, 32), (7, 5), (1, 1), (300, 40)):
        for cls in (HpsV21, PickScore, ClipScore):
            found = loaded(cls, small).rate(images(2, height, width), TEXTS[:2])
            assert found.shape == (2,)
            assert found.isfinite().all()


def test_long_prompts_of_a_run_are_announced_when_it_loads(small):
    reward = HpsV21(model=small.pickle, architecture=small.sizes, tokenizer=small.tokenizer)
    with pytest.warns(UserWarning, match="prompts over 77 tokens are cut: 1 of 2") as told:
        reward.load(LoadContext("cpu", prompts=(Prompt("x" * 99), Prompt("y"))))
        reward.rate(images(1), ["z" * 99])
    assert len(told) == 1


def test_an_unequal_number_of_prompts_is_refused(small):
    with pytest.raises(ValueError, match="expected a prompt an image, got 1 for 2"):
        loaded(HpsV21, small).rate(images(2), ["a"])


def test_a_reward_that_is_not_loaded_says_so():
    with pytest.raises(ValueError, match="HpsV21 is not loaded"):
        HpsV21().rate(images(1), ["a"])


def aesthetic_layers(width=16, seed=2):
    generator = torch.Generator().manual_seed(seed)
    sizes, layers = (width, 24, 12, 8, 6, 1), {}
    for place, (inputs, outputs) in zip((0, 2, 4, 6, 7), pairwise(sizes), strict=True):
        layers[f"layers.{place}.weight"] = torch.randn(
            outputs, inputs, generator=generator
        ) / math.sqrt(inputs)
        layers[f"layers.{place}.bias"] = torch.randn(outputs, generator=generator)
    return layers


def head_file(folder, layers=None):
    path = folder / "head.pth"
    torch.save(aesthetic_layers() if layers is None else layers, path)
    return str(path)


def test_the_aesthetic_score_is_five_linear_layers_on_unit_features(small, tmp_path):
    reward = loaded(Aesthetic, small, dtype="float64", head=head_file(tmp_path))
    state = {name: value.double() for name, value in small.state.items()}
    pixels = openai_pixels(images(dtype=torch.float64), 32)
    x = encode_image(state, pixels, 2, "gelu")
    x = x / x.norm(dim=-1, keepdim=True)
    layers = {name: value.double() for name, value in aesthetic_layers().items()}
    for place in (0, 2, 4, 6, 7):
        x = torch.nn.functional.linear(
            x, layers[f"layers.{place}.weight"], layers[f"layers.{place}.bias"]
        )
    found = reward.rate(images(dtype=torch.float64))
    torch.testing.assert_close(found, x.squeeze(-1), rtol=0, atol=1e-12)


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="antialias = true only"):
        HpsV21(rounding="two-pass", antialias=False)
    with pytest.raises(ValueError, match='resize = "bicubic" only'):
        ClipScore(rounding="two-pass")


def test_the_recorded_features_come_out_of_the_reward_itself(tmp_path):
    """Its tokenizer would not fit the recorded model's 125 tokens, so only images are judged."""
    head = {**aesthetic_layers(), "layers.7.weight": torch.ones(1, 6)}
    reward = Aesthetic(
        model=str(ORACLES / "clip_gelu.safetensors"),
        architecture=tiny(),
        head=head_file(tmp_path, head),
    )
    reward.load(LoadContext("cpu"))
    wanted = recorded("clip_gelu_cases")["image_features"]
    # s2 and s3 are square, where HPSv2's pixels and OpenAI's are the same
    for row in (2, 3):
        found = reward.features(case_image(f"s{row}"))[0]
        assert float((found - wanted[row]).abs().max()) < 1e-5
