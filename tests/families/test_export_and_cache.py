"""Exported weights give the trained image; embeddings are kept by prompt, encoder and settings."""

import json

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors import safe_open

from families.family_cases import FAMILIES, PROMPTS
from families.test_pipelines import rollout_of
from headwater.families.embeddings import EmbeddingCache, fingerprint
from headwater.testing import pipelines as tiny_pipelines


def trained(family, folder, **settings):
    """A backbone whose weights have moved."""
    plugin = family.load(folder, **settings)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in plugin.trainable().values():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return plugin


@pytest.mark.parametrize("name", FAMILIES)
def test_a_lora_loaded_by_the_pipeline_gives_the_trained_image(folders, tmp_path, name):
    family, folder = FAMILIES[name], folders(name)
    plugin = trained(family, folder)
    plugin.export(tmp_path)
    scale = family.guidances[-1]
    rollout = rollout_of(plugin, 32, 32)
    pipeline = family.own_pipeline(folder)
    with torch.no_grad():
        got = plugin.decode(rollout.state(4))
        before = family.call(pipeline, rollout, scale, 32, 32)
        pipeline.load_lora_weights(tmp_path)
        after = family.call(pipeline, rollout, scale, 32, 32)
    assert float((got - after).abs().max()) <= 1e-5
    assert float((got - before).abs().max()) > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_merged_delta_is_alpha_over_rank_times_b_a(folders, tmp_path, name):
    family, folder = FAMILIES[name], folders(name)
    plugin = trained(family, folder)
    plugin.export(tmp_path)
    pipeline = family.own_pipeline(folder)
    target = family.layer
    before = pipeline.transformer.get_submodule(target).weight.detach().clone()
    pipeline.load_lora_weights(tmp_path)
    pipeline.fuse_lora()
    layer = pipeline.transformer.get_submodule(target)
    after = getattr(layer, "base_layer", layer).weight.detach()
    layers = get_peft_model_state_dict(plugin.network)
    a, b = layers[f"{target}.lora_A.weight"], layers[f"{target}.lora_B.weight"]
    assert torch.allclose(after - before, 6.0 / 4 * b @ a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_fully_trained_weights_are_a_diffusers_folder(folders, tmp_path, name):
    plugin = trained(FAMILIES[name], folders(name), train="full")
    plugin.export(tmp_path)
    again = type(plugin.network).from_pretrained(tmp_path / "transformer")
    written = plugin.network.state_dict()
    assert all(torch.equal(value, written[key]) for key, value in again.state_dict().items())


def test_an_embedding_is_kept_and_not_encoded_again(folders, tmp_path):
    family = FAMILIES["sd3"]
    first = family.load(folders("sd3"), embeddings=str(tmp_path))
    second = family.load(folders("sd3"), embeddings=str(tmp_path))
    assert (first._cache.misses, second._cache.misses) == (4, 0)
    a, b = first.encode(PROMPTS), second.encode(PROMPTS)
    assert all(torch.equal(a.given[key], b.given[key]) for key in a.given)
    path = next(tmp_path.glob("*.safetensors"))
    with safe_open(path, "pt") as file:
        assert set(json.loads(file.metadata()["made_by"])) >= {"encoder weights", "dtype"}


def test_other_encoder_weights_invalidate_the_cache_and_say_so(folders, tmp_path):
    family = FAMILIES["sd3"]
    other = tiny_pipelines.saved(tiny_pipelines.sd3, tmp_path / "other", encoder_seed=50)
    kept = str(tmp_path / "kept")
    first = family.load(folders("sd3"), embeddings=kept)
    second = family.load(other, embeddings=kept)
    assert second._cache.misses == 4
    assert second._cache.reasons == {"encoder weights"}
    assert "other encoder weights" in second._cache.report()
    a, b = first.encode(PROMPTS).given["states"], second.encode(PROMPTS).given["states"]
    assert not torch.allclose(a, b)


def test_case_and_spaces_make_another_prompt(tmp_path):
    asked = []

    def encode(texts):
        asked.extend(texts)
        return [{"states": torch.zeros(2, 3)} for _ in texts]

    cache = EmbeddingCache(tmp_path, {"dtype": "float32"})
    cache.get(["a cat", "A cat", "a cat ", "a cat"], encode)
    assert asked == ["a cat", "A cat", "a cat "]
    cache.get(["a cat"], encode)
    assert len(asked) == 3


def test_the_fingerprint_is_of_contents(folders, tmp_path):
    same = fingerprint(folders("sd3"), ("text_encoder",))
    copy = tmp_path / "copy" / "text_encoder"
    copy.mkdir(parents=True)
    for file in (folders("sd3") / "text_encoder").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert fingerprint(tmp_path / "copy", ("text_encoder",)) == same
    (copy / "config.json").write_text("{}")
    assert fingerprint(tmp_path / "copy", ("text_encoder",)) != same
