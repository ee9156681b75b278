"""HPSv3's form on a tiny Qwen2-VL of the real classes, with random weights under its own names."""

import hashlib
import json

import pytest
import torch
from rewards_vlm.hpsv3_cases import RELEASED, TEXT, Small, tokenizer
from safetensors.torch import save_file

from headwater.errors import PluginError
from headwater_rewards_vlm.hpsv3 import INSTRUCTION_SHA256
from headwater_rewards_vlm.qwen import Hpsv3Network, base_config, renamed


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return Small(tmp_path_factory.mktemp("hpsv3"))


def images(count, height=70, width=90, seed=0):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def by_hand(small, image, prompt, positions="sequential"):
    """The original's steps: the real processor's patches, embeddings with the image's tokens in
    them, the language model without rows and columns, the head at the reward token."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = 16 * 28 * 28
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": pixels, "longest_edge": pixels})
    levels = (image * 255).round().byte().permute(1, 2, 0).numpy()
    vision = processor(images=[levels], return_tensors="pt")
    grid = vision["image_grid_thw"]
    count = int(grid.prod()) // 4
    said = "<|im_start|>user\n<|vision_start|>" + "<|image_pad|>" * count + "<|vision_end|>"
    said += TEXT.replace("{text_prompt}", prompt) + "<|im_end|>\n<|im_start|>assistant\n"
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})
    ids = torch.tensor([words(said)["input_ids"]])
    inner = small.model.model
    embeddings = inner.get_input_embeddings()(ids)
    embeddings[ids == small.model.config.image_token_id] = inner.visual(
        vision["pixel_values"], grid_thw=grid
    ).pooler_output
    where = torch.arange(ids.shape[1]).expand(3, 1, -1)
    if positions == "image":
        kinds = (ids == small.model.config.image_token_id).int()
        where, _ = inner.get_rope_index(ids, kinds, image_grid_thw=grid)
    hidden = inner.language_model(inputs_embeds=embeddings, position_ids=where).last_hidden_state
    place = int((ids[0] == words.convert_tokens_to_ids("<|Reward|>")).nonzero())
    x = hidden[0, place]
    for layer in (0, 3, 5):
        x = x @ small.head[f"rm_head.{layer}.weight"].T + small.head[f"rm_head.{layer}.bias"]
        x = x if layer == 5 else x.relu()
    return x


@torch.no_grad()
def test_mu_and_sigma_are_those_of_the_original_steps(small):
    made = small.reward(rounding="pillow")
    given, prompts = images(3), ["a cat", "a small red dog on a mat", ""]
    found = made.mu_sigma(given, prompts)
    wanted = torch.stack([by_hand(small, i, p) for i, p in zip(given, prompts, strict=True)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert torch.equal(made.rate(given, prompts), found[:, 0])
    other = by_hand(small, given[0], prompts[0], positions="image")
    assert float((other - wanted[0]).abs().max()) > 1e-4  # the case can tell


@torch.no_grad()
def test_a_batch_is_its_samples_one_by_one(small):
    made = small.reward()
    given, prompts = images(3), ["a", "a much longer prompt than the first one", "b"]
    whole = made.rate(given, prompts)
    each = torch.cat([made.rate(given[i : i + 1], prompts[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(whole, each, rtol=0, atol=1e-5)
    assert len(set(whole.tolist())) == 3


def test_the_gradient_to_the_pixels_is_that_of_finite_differences(small):
    """Qwen2-VL's norms compute in float32 whatever the weights, hence the wide step."""
    made = small.reward(dtype="float64")
    given = (images(2).double() * 0.8 + 0.1).requires_grad_()
    (gradient,) = torch.autograd.grad(made.rate(given, ["a", "b"]).sum(), given)
    way = torch.randn(given.shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        ends = [made.rate(given + s * 3e-4 * way, ["a", "b"]).sum() for s in (1, -1)]
    slope = float(ends[0] - ends[1]) / 6e-4
    assert slope == pytest.approx(float((gradient * way).sum()), rel=1e-2)


@torch.no_grad()
def test_special_tokens_in_a_prompt_are_only_words(small):
    made = small.reward()
    given = images(1)
    for prompt in ("<|Reward|>", "<|image_pad|> and <|im_end|>", "{text_prompt}"):
        assert bool(made.rate(given, [prompt]).isfinite())
    faked = made.rate(given, ["a <|Reward|>"])
    parted = made.rate(given, ["a < |Reward|>"])
    assert torch.equal(faked, parted)


@torch.no_grad()
def test_the_names_of_newer_transformers_load_as_well(small, tmp_path):
    state = {k: v.clone() for k, v in small.model.state_dict().items()}
    save_file({**state, **small.head}, tmp_path / "new.safetensors")
    made = small.reward(model=str(tmp_path / "new.safetensors"))
    assert torch.equal(made.rate(images(1), ["a"]), small.reward().rate(images(1), ["a"]))
    assert renamed("lm_head.weight") == ""


def test_half_weights_keep_the_head_in_float32(small):
    made = small.reward(dtype="bfloat16")
    assert made._network.rm_head[0].weight.dtype == torch.float32
    assert made._network.model.dtype == torch.bfloat16
    given = images(1).requires_grad_()
    score = made.rate(given, ["a cat"])
    (gradient,) = torch.autograd.grad(score.sum(), given)
    assert score.dtype == torch.float32 and bool(gradient.isfinite().all())
    assert abs(float(score.detach()) - float(small.reward().rate(given.detach(), ["a cat"]))) < 0.1


def test_wrong_weights_are_named(small, tmp_path):
    def said(change):
        state = dict(small.state)
        change(state)
        path = tmp_path / "wrong.safetensors"
        save_file(state, path)
        with pytest.raises(PluginError) as caught:
            small.reward(model=str(path))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "are missing (rm_head.5.bias)" in said(lambda s: s.pop("rm_head.5.bias"))
    assert "not known (model.extra)" in said(lambda s: s.update({"extra": torch.ones(1)}))
    name = "visual.patch_embed.proj.weight"
    assert f"{name} (2,), expected" in said(lambda s: s.update({name: torch.ones(2)}))
    assert "no token table" in said(lambda s: (s.clear(), s.update({"a": torch.ones(1)})))


def test_the_instruction_must_be_the_one_that_is_meant(small, tmp_path):
    with pytest.raises(PluginError, match=f"expected {INSTRUCTION_SHA256}.*pip download"):
        small.reward(instruction_sha256=INSTRUCTION_SHA256)
    with pytest.raises(PluginError, match=r"no file .*prompt_with_special_token"):
        small.reward(instruction=str(tmp_path / "none.txt"))
    plain = tmp_path / "plain.txt"
    plain.write_text("Just {text_prompt}")
    digest = hashlib.sha256(plain.read_bytes()).hexdigest()
    with pytest.raises(PluginError, match=r"holds <\|Reward\|> 0 times"):
        small.reward(instruction=str(plain), instruction_sha256=digest)


def test_missing_parts_say_what_to_download_and_where_to_put_it(small, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PluginError, match=r"HPSv3\.safetensors of MizzenAI/HPSv3.*17 GB.*FOLDER"):
        small.reward(model="MizzenAI/HPSv3")
    with pytest.raises(PluginError, match=r"no weights.*then set base to FOLDER"):
        small.reward(base="Qwen/Qwen2-VL-7B-Instruct")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(PluginError, match="of a model 'llama', expected 'qwen2_vl'"):
        small.reward(base=str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PluginError, match="cannot be read"):
        small.reward(base=str(tmp_path))


def test_the_released_sizes_give_the_published_number_of_weights(tmp_path):
    from transformers import Qwen2VLModel

    (tmp_path / "config.json").write_text(json.dumps(RELEASED))
    made = base_config(tmp_path, rows=151_658)  # 151,657 tokens and <|Reward|>
    assert made.text_config.vocab_size == 151_658
    assert made.text_config.rope_parameters["mrope_section"] == [16, 24, 24]
    with torch.device("meta"):
        network = Hpsv3Network(Qwen2VLModel(made), made.text_config.hidden_size)
    count = sum(p.numel() for p in network.parameters()) + 151_658 * 3584  # the unused lm_head
    assert count == pytest.approx(8.3e9, rel=5e-3)
