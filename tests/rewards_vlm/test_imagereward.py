"""ImageReward from its own weight names: features, rewards, gradients and borders as recorded."""

import numpy as np
import pytest
import torch
from PIL import Image
from rewards_vlm.imagereward_cases import CASES, RECORD, SIZES, TEXTS, image, reward, state, write

from headwater.errors import PluginError
from headwater.protocols import LoadContext
from headwater.tensor_files import save_safetensors
from headwater_rewards_vlm import blip
from headwater_rewards_vlm.imagereward import ImageReward
from headwater_rewards_vlm.preprocessing import imagereward_pixels

NAMES = RECORD["images"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return reward(tmp_path_factory.mktemp("imagereward"))


def test_tokens_are_those_of_the_original(loaded):
    with pytest.warns(UserWarning, match="reads 35 tokens of a prompt: 4 of 12 are cut"):
        ids, mask = loaded.tokens(TEXTS)
    assert torch.equal(ids, CASES["ids"])
    assert torch.equal(mask, CASES["attention_mask"])


def test_image_tokens_and_text_features_are_those_of_the_original(loaded):
    network = loaded._network
    embeds = network.vision(pixel_values=CASES["pixels"]).last_hidden_state
    torch.testing.assert_close(embeds, CASES["image_embeds"], rtol=0, atol=1e-5)
    for i in range(6):
        pixels = CASES["pixels"][i : i + 1].expand(12, -1, -1, -1)
        found = network.features(pixels, CASES["ids"], CASES["attention_mask"])
        torch.testing.assert_close(found, CASES["cls_features"][i], rtol=0, atol=1e-5)
        out = network(pixels, CASES["ids"], CASES["attention_mask"])
        torch.testing.assert_close(out, CASES["mlp_output"][i], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:imagereward reads")
@pytest.mark.parametrize("index", range(6))
def test_scores_of_pictures_are_those_of_the_original(loaded, tmp_path, index):
    """The original's arithmetic differs by 7e-6; its pictures are resized by the same Pillow."""
    pillow = reward(tmp_path, rounding="pillow")
    found = pillow.rate(image(NAMES[index]).expand(12, -1, -1, -1), TEXTS)
    torch.testing.assert_close(found, CASES["score"][index], rtol=0, atol=2e-5)
    raw = reward(tmp_path / "raw", rounding="pillow", scale="mlp")
    out = raw.rate(image(NAMES[index]).expand(12, -1, -1, -1), TEXTS)
    torch.testing.assert_close(out, CASES["mlp_output"][index], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("name", "prompt"), [("s0", 0)])
@pytest.mark.filterwarnings("ignore:imagereward reads")
def test_the_gradient_to_the_pixels_is_that_of_refl(loaded, name, prompt):
    given = image(name).requires_grad_()
    score = loaded.rate(given, [TEXTS[prompt]])
    (gradient,) = torch.autograd.grad(score.sum(), given)
    torch.testing.assert_close(score, CASES[f"refl_reward_{name}"].view(1), rtol=0, atol=1e-5)
    recorded = CASES[f"refl_grad_{name}"]
    scale = float(recorded.abs().max())
    torch.testing.assert_close(gradient[0], recorded, rtol=0, atol=1e-5 * max(scale, 1e-3))


def test_the_gradient_is_that_of_finite_differences(tmp_path):
    made = reward(tmp_path, dtype="float64")
    generator = torch.Generator().manual_seed(1)
    given = torch.rand(2, 3, 40, 56, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    given.requires_grad_()
    texts = ["a photo of a cat", "a dog"]
    (gradient,) = torch.autograd.grad(made.rate(given, texts).sum(), given)
    for seed in range(3):
        way = torch.randn(given.shape, generator=torch.Generator().manual_seed(seed)).double()
        with torch.no_grad():
            ends = [made.rate(given + s * 1e-6 * way, texts).sum() for s in (1, -1)]
        slope = float(ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx(float((gradient * way).sum()), rel=1e-6)


def test_the_rounded_form_has_the_gradient_of_the_plain_one(tmp_path):
    texts = ["a photo of a cat"]
    plain = image("s1").requires_grad_()
    pixels = imagereward_pixels(plain, 32, rounding="pillow")
    (rounded,) = torch.autograd.grad(pixels.square().sum(), plain)
    assert float(rounded.abs().sum()) > 0
    ones = torch.autograd.grad(imagereward_pixels(plain, 32, rounding="pillow").sum(), plain)[0]
    same = torch.autograd.grad(imagereward_pixels(plain, 32).sum(), plain)[0]
    assert torch.equal(ones, same)
    made = reward(tmp_path, rounding="pillow")
    with_grad = made.rate(plain, texts)
    without = made.rate(plain.detach(), texts)
    torch.testing.assert_close(with_grad.detach(), without, rtol=0, atol=1e-6)


def test_the_rounded_pixels_are_those_of_pillow():
    """Independently: a picture, Pillow's resize and crop, the levels over 255."""
    mean = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
    std = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
    for name, box in {"i3": (347, 224), "i4": (224, 298), "i6": (224, 224)}.items():
        levels = (image(name)[0] * 255).round().byte().permute(1, 2, 0).numpy()
        small = Image.fromarray(levels).resize(box, Image.Resampling.BICUBIC)
        left, top = round((box[0] - 224) / 2), round((box[1] - 224) / 2)
        cut = np.asarray(small.crop((left, top, left + 224, top + 224)), dtype=np.float32)
        wanted = ((cut / 255 - mean) / std).transpose(2, 0, 1)
        found = imagereward_pixels(image(name), rounding="pillow")[0].numpy()
        assert np.abs(found - wanted).max() < 1e-6


def test_images_outside_the_range_are_clamped(loaded):
    given = image("s2")
    text = ["a photo of a cat"]
    wide = (given * 3 - 1).requires_grad_()
    torch.testing.assert_close(loaded.rate(wide, text), loaded.rate(wide.clamp(0, 1), text))
    (gradient,) = torch.autograd.grad(loaded.rate(wide, text).sum(), wide)
    outside = (wide < 0) | (wide > 1)
    assert bool(outside.any()) and float(gradient[outside].abs().max()) == 0


def test_a_batch_is_its_samples_one_by_one(loaded):
    texts = ["a photo of a cat", "a dog", "neon sign"]
    images = torch.rand(3, 3, 50, 70, generator=torch.Generator().manual_seed(2))
    whole = loaded.rate(images, texts)
    each = torch.cat([loaded.rate(images[i : i + 1], texts[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(whole, each, rtol=0, atol=1e-5)
    assert len(set(whole.tolist())) == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_weights_score_about_the_same_in_float32(loaded, tmp_path, dtype):
    made = reward(tmp_path, dtype=dtype)
    given, text = image("s0").requires_grad_(), ["a photo of a cat"]
    score = made.rate(given, text)
    assert score.dtype == torch.float32
    assert abs(float(score.detach()) - float(loaded.rate(given.detach(), text))) < 0.1
    (gradient,) = torch.autograd.grad(score.sum(), given)
    assert gradient.dtype == torch.float32 and bool(gradient.isfinite().all())


def test_odd_images_are_refused_with_their_shape(loaded):
    for shape in ((1, 4, 32, 32), (3, 32, 32), (1, 3, 0, 32)):
        with pytest.raises(ValueError, match="expected images"):
            loaded.rate(torch.rand(shape), ["a"] * shape[0])
    with pytest.raises(ValueError, match="expected a prompt an image, got 2 for 1"):
        loaded.rate(image("s0"), ["a", "b"])
    with pytest.raises(ValueError, match="not loaded"):
        ImageReward().rate(image("s0"), ["a"])


def load(model, vocabulary, sizes=SIZES):
    made = ImageReward(model=str(model), vocabulary=str(vocabulary), architecture=sizes)
    made.load(LoadContext("cpu"))


def test_wrong_weights_are_named(tmp_path):
    def said(change):
        given = state()
        change(given)
        with pytest.raises(PluginError) as caught:
            load(*write(tmp_path / str(len(list(tmp_path.iterdir()))), given))
        text = str(caught.value)
        assert "\n" not in text
        return text

    name = "blip.visual_encoder.blocks.0.attn.qkv.weight"
    assert f"1 of 108 weights are missing ({name})" in said(lambda s: s.pop(name))
    assert "1 are not known (blip.visual_encoder.extra)" in said(
        lambda s: s.update({"blip.visual_encoder.extra": torch.ones(1)})
    )
    shape = said(lambda s: s.update({name: torch.ones(3, 3)}))
    assert f"{name} (3, 3), expected (96, 32)" in shape
    assert "108 of 108 weights are missing" in said(
        lambda s: (s.clear(), s.update({"logit_scale": torch.ones(())}))
    )


def test_another_models_sizes_are_named(tmp_path):
    model, vocabulary = write(tmp_path)
    with pytest.raises(PluginError, match="expected"):
        load(model, vocabulary, "stated")
    with pytest.raises(ValueError, match="text_width: expected a multiple of 5, got 48"):
        blip.Sizes(text_width=48, text_heads=5)


def test_a_pickle_loads_only_where_it_holds_tensors_alone(tmp_path):
    _, vocabulary = write(tmp_path)
    torch.save(state(), tmp_path / "ImageReward.pt")
    load(tmp_path / "ImageReward.pt", vocabulary)
    load(tmp_path, vocabulary)  # the folder that holds it
    save_safetensors(tmp_path / "ImageReward.pt", tmp_path / "converted.safetensors")
    load(tmp_path / "converted.safetensors", vocabulary)
    torch.save({"state_dict": state(), "run": print}, tmp_path / "code.pt")
    with pytest.raises(PluginError, match="would run code"):
        load(tmp_path / "code.pt", vocabulary)
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(PluginError, match="cannot be read as named tensors"):
        load(tmp_path / "broken.safetensors", vocabulary)


def test_missing_files_say_what_to_download_and_where_to_put_it(tmp_path, monkeypatch):
    model, vocabulary = write(tmp_path)
    with pytest.raises(PluginError) as caught:
        load(tmp_path / "none.pt", vocabulary)
    text = str(caught.value)
    assert "ImageReward.pt of THUDM/ImageReward" in text and "1.79 GB" in text
    assert "then set model to FOLDER/ImageReward.pt" in text and "\n" not in text
    with pytest.raises(PluginError, match=r"vocab\.txt of google-bert.*set vocabulary to"):
        load(model, tmp_path / "none.txt")
    with pytest.raises(PluginError, match="is no hub id"):
        load("nonsense", vocabulary)


def test_a_hub_that_cannot_be_reached_ends_in_the_same_paragraph(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _, vocabulary = write(tmp_path)
    with pytest.raises(PluginError, match=r"neither in the hub's cache nor .*1\.79 GB"):
        load("THUDM/ImageReward", vocabulary)


def test_a_vocabulary_that_is_none_is_refused(tmp_path):
    model, vocabulary = write(tmp_path)
    for text, said in (
        ("cat\ndog\n", r"\[PAD\], \[UNK\]"),
        ("x\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n", "not its first line"),
        (vocabulary.read_text() + "one\nmore\n", "has 100 tokens, the network knows 98"),
    ):
        other = tmp_path / "other.txt"
        other.write_text(text)
        with pytest.raises(PluginError, match=said):
            load(model, other)
    (tmp_path / "other.txt").write_bytes(b"\xff\xff")
    with pytest.raises(PluginError, match="cannot be read"):
        load(model, tmp_path / "other.txt")


def test_the_released_network_has_the_published_number_of_weights():
    network = blip.blank_network(blip.Sizes())
    encoders = sum(p.numel() for p in network.vision.parameters())
    text = sum(p.numel() for p in network.text.parameters())
    assert encoders == pytest.approx(303.3e6, rel=1e-3)
    # 142.0 million with BERT's unused projections of 768 and 1024 to 256 left out.
    assert text == pytest.approx(142.0e6, rel=1e-2)
    total = encoders + text + sum(p.numel() for p in network.mlp.parameters())
    projections = (1024 + 1) * 256 + (768 + 1) * 256
    assert total + projections == 446_665_953


def test_its_memory_is_planned_without_weights():
    made = ImageReward()
    made.load(LoadContext("meta"))
    images = torch.zeros(2, 3, 512, 512, device="meta", requires_grad=True)
    assert made.rate(images, ["a", "b"]).shape == (2,)


def test_unused_weights_are_dropped_and_no_others():
    assert blip.renamed("blip.vision_proj.weight") == ""
    assert blip.renamed("blip.text_encoder.embeddings.position_ids") == ""
    with pytest.raises(ValueError, match="no weight of ImageReward"):
        blip.renamed("visual_encoder.norm.weight")
