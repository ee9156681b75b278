"""Checkpoints under open_clip's names through transformers' CLIPModel, strictly."""

import pytest
import torch
from rewards_clip.clip_cases import case_image, random_checkpoint, recorded, tiny
from rewards_clip.open_clip_form import encode_image, encode_text

from headwater_rewards_clip.architecture import VIT_H_14, VIT_L_14, open_clip_shapes
from headwater_rewards_clip.conversion import to_transformers
from headwater_rewards_clip.preprocessing import hps_pixels, transformers_pixels
from headwater_rewards_clip.scores import cosine, image_features, scaled, text_features
from headwater_rewards_clip.weights import clip_from_state

IMAGES = [f"s{i}" for i in range(6)]


@pytest.fixture(scope="module")
def cases():
    return recorded("clip_gelu_cases")


@pytest.fixture(scope="module")
def clip():
    return clip_from_state(recorded("clip_gelu"), tiny()).eval().requires_grad_(False)


def distance(left, right):
    return float((left - right).detach().abs().max())


def test_features_and_cosines_are_those_of_open_clip(clip, cases):
    pixels = torch.cat([hps_pixels(case_image(name), 32, always_pad=True) for name in IMAGES])
    assert distance(pixels, cases["pixels"]) < 2e-6
    images = image_features(clip, pixels)
    texts = text_features(clip, cases["ids"])
    assert distance(images, cases["image_features"]) < 1e-5
    assert distance(texts, cases["text_features"]) < 1e-5
    masked = text_features(clip, cases["ids"], (cases["ids"] != 0).long())
    assert distance(masked, texts) == 0
    every = cosine(images[:, None], texts[None])
    assert distance(every, cases["cosine"]) < 1e-6
    assert distance(every[:, :6], cases["hpsv2_score"]) < 1e-6
    assert distance(cosine(images, texts[:6]), cases["pair_cosine"]) < 1e-6
    assert distance(clip.logit_scale.exp(), cases["logit_scale_exp"]) < 1e-4


@pytest.mark.parametrize(("name", "row"), [("s0", 0), ("s4", 4)])
def test_the_gradient_reaches_the_pixels_as_in_flowbp(clip, cases, name, row):
    image = case_image(name).requires_grad_()
    text = text_features(clip, cases["ids"][row : row + 1])
    reward = cosine(image_features(clip, hps_pixels(image.clamp(0, 1), 32)), text)
    reward.sum().backward()
    assert distance(reward.detach(), cases[f"flowbp_reward_{name}"]) < 1e-6
    largest = float(cases[f"flowbp_grad_{name}"].abs().max())
    assert distance(image.grad[0], cases[f"flowbp_grad_{name}"]) < 1e-5 * largest


def test_pickscore_in_its_three_forms(clip, cases):
    pixels = [transformers_pixels(case_image(n), 32, rounding="two-pass") for n in IMAGES]
    assert distance(torch.cat(pixels), cases["pickscore_pixels"]) < 0.0151  # one 8-bit level
    images = image_features(clip, cases["pickscore_pixels"])
    texts = text_features(clip, cases["pickscore_ids"], cases["pickscore_mask"])
    flow_grpo = scaled(cosine(images, texts), clip.logit_scale, "logit/26")
    assert distance(flow_grpo, cases["pickscore_flowgrpo"]) < 1e-5
    logits = scaled(cosine(images[None], texts[:, None]), clip.logit_scale, "logit")
    assert distance(logits, cases["pickscore_scores"]) < 1e-5
    assert distance(logits.softmax(-1), cases["pickscore_probs"]) < 1e-6


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_both_activations_equal_the_written_out_network_in_float64(activation):
    sizes = tiny(activation=activation, vision_layers=3, text_heads=4, context=20)
    state = {name: value.double() for name, value in random_checkpoint(sizes, 3).items()}
    clip = clip_from_state(state, sizes, torch.float64).eval()
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randn(3, 3, 32, 32, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 123, (4, 20), generator=generator)
    for row, end in enumerate((19, 3, 10, 1)):
        ids[row, end], ids[row, end + 1 :] = 124, 0
    found = image_features(clip, pixels), text_features(clip, ids)
    wanted = encode_image(state, pixels, 2, activation), encode_text(state, ids, 4, activation)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    other = clip_from_state(state, tiny(**{**_fields(sizes), "activation": _other(activation)}))
    assert distance(image_features(other, pixels.float()), wanted[0]) > 1e-3


def _fields(sizes):
    import attrs

    return attrs.asdict(sizes)


def _other(activation):
    return "gelu" if activation == "quick_gelu" else "quick_gelu"


def test_the_written_out_network_is_the_recorded_one(cases):
    state = recorded("clip_gelu")
    assert distance(encode_image(state, cases["pixels"], 2, "gelu"), cases["image_features"]) < 1e-5
    assert distance(encode_text(state, cases["ids"], 3, "gelu"), cases["text_features"]) < 1e-5


def test_a_wrong_head_count_is_not_the_same_model(cases):
    wrong = clip_from_state(recorded("clip_gelu"), tiny(vision_heads=4)).eval()
    assert distance(image_features(wrong, cases["pixels"]), cases["image_features"]) > 0.1


def test_wrappers_masks_and_sizes_of_archives_are_left_out():
    state = {f"module.{name}": value for name, value in recorded("clip_gelu").items()}
    extra = {"attn_mask": torch.zeros(77, 77), "input_resolution": torch.tensor(32)}
    renamed = to_transformers({**state, **extra, "context_length": torch.tensor(77)}, tiny())
    plain = to_transformers(recorded("clip_gelu"), tiny())
    assert renamed.keys() == plain.keys()
    assert all(torch.equal(renamed[k], plain[k]) for k in plain)


def test_missing_unknown_and_misshapen_weights_are_named():
    state = recorded("clip_gelu")
    del state["visual.proj"], state["ln_final.bias"]
    state["visual.extra"] = torch.zeros(1)
    state["visual.conv1.weight"] = torch.zeros(32, 3, 4, 4)
    with pytest.raises(ValueError, match="is not the CLIP model that is declared") as told:
        clip_from_state(state, tiny(), source="some.pt")
    text = str(told.value)
    assert "2 of 62 weights are missing (" in text
    assert "ln_final.bias" in text
    assert "visual.conv1.weight (32, 3, 4, 4), expected (32, 3, 8, 8)" in text
    assert "1 are not known (visual.extra)" in text
    assert "\n" not in text


def test_a_checkpoint_with_a_layer_too_few_is_refused():
    shorter = random_checkpoint(tiny(text_layers=1))
    with pytest.raises(ValueError, match="12 of 62 weights are missing"):
        to_transformers(shorter, tiny())


def test_the_released_sizes_have_the_published_number_of_weights():
    def count(sizes):
        return sum(torch.Size(shape).numel() for shape in open_clip_shapes(sizes).values())

    assert count(VIT_H_14) == 986_109_441
    assert count(VIT_L_14) == 427_616_513
