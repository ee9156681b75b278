"""Token numbers against recordings of open_clip and transformers, on the real vocabulary."""

import warnings

import pytest
import torch
from rewards_clip.clip_cases import manifest, random_checkpoint, save_tokenizer, tiny

from headwater_rewards_clip.prompt_features import PromptFeatures
from headwater_rewards_clip.scores import text_features
from headwater_rewards_clip.tokens import cleaned, load_tokenizer, tokenize
from headwater_rewards_clip.weights import clip_from_state

PROMPTS = {p["name"]: p for p in manifest("clip_tokens")["prompts"]}
START, END = 49406, 49407


@pytest.fixture(scope="module")
def both():
    return {clean: load_tokenizer(clean=clean) for clean in (True, False)}


@pytest.mark.parametrize("name", PROMPTS)
def test_both_tokenizers_give_the_recorded_numbers(both, name):
    prompt = PROMPTS[name]
    repaired = tokenize(both[True], [prompt["text"]])
    ids = repaired.ids[0].tolist()
    assert ids[: ids.index(END) + 1] == prompt["open_clip"]
    assert int(repaired.ids[0].argmax()) == prompt["eot_position"]
    plain = tokenize(both[False], [prompt["text"]])
    assert plain.ids[0][plain.mask[0] == 1].tolist() == prompt["hf"]


def test_transformers_itself_gives_the_same_numbers_padding_and_mask(both):
    texts = [p["text"] for p in PROMPTS.values()]
    found = both[False]._tokenizer(
        texts, padding="max_length", truncation=True, max_length=77, return_tensors="pt"
    )
    ours = tokenize(both[False], texts)
    assert torch.equal(ours.ids, found["input_ids"])
    assert torch.equal(ours.mask, found["attention_mask"])


def test_open_clip_pads_with_zero_and_a_cut_text_keeps_its_end(both):
    tokens = tokenize(both[True], ["a cat", "cat " * 90])
    assert tokens.ids[0].tolist() == [START, 320, 2368, END, *[0] * 73]
    assert tokens.ids[1, -1] == END
    assert tokens.lengths == (4, 92)


def test_cleaning_repairs_encodings_and_entities_twice():
    assert cleaned("  A cafÃ©\n&amp;amp;  “X” ") == 'a café & "x"'
    assert cleaned("ﬁsh ＡＢ") == "fish ab"


def test_the_pattern_ignores_case_as_open_clips_does(both):
    """Recorded from open_clip: a long s is an s after an apostrophe, `<END_OF_TEXT>` is the end."""
    ids = tokenize(both[True], ["it'ſ ǰ !! <END_OF_TEXT>"]).ids[0].tolist()
    assert ids[:10] == [START, 585, 6, 129, 379, 131, 364, 748, END, END]


def test_a_folders_own_tokenizer_is_read_in_both_ways(tmp_path):
    size = save_tokenizer(tmp_path)
    for clean in (True, False):
        tokenizer = load_tokenizer(str(tmp_path), clean=clean)
        assert (tokenizer.start, tokenizer.end, tokenizer.size) == (size - 2, size - 1, size)
        assert tokenizer.pieces("Ab") == [
            tokenizer.pieces("a b")[0] - 256,
            tokenizer.pieces("b")[0],
        ]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no CLIP tokenizer"):
        load_tokenizer(str(tmp_path), clean=False)


@pytest.fixture
def small(tmp_path):
    """A model of a small vocabulary and its tokenizer."""
    size = save_tokenizer(tmp_path)
    sizes = tiny(vocabulary=size)
    clip = clip_from_state(random_checkpoint(sizes), sizes).eval()
    return PromptFeatures(clip, load_tokenizer(str(tmp_path), clean=False))


def test_long_prompts_are_cut_with_one_warning(small):
    with pytest.warns(UserWarning, match="2 of 3, the longest of 102 tokens begins 'yyy") as told:
        small.announce(["x" * 80, "y" * 100, "z", "z"])
        small.announce(["w" * 200])
        small.get(["v" * 300])
    assert len(told) == 1
    # What is beyond the cut changes nothing: 75 letters, a start and an end.
    assert torch.equal(*small.get(["a" * 76, "a" * 90]))


def test_prompts_that_fit_give_no_warning(small):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small.announce(["x" * 75, ""])


def test_features_are_computed_once_a_prompt_and_do_not_depend_on_company(small, monkeypatch):
    alone = small.get(["a red cat"])
    calls = []
    inner = small.clip.get_text_features
    monkeypatch.setattr(
        small.clip, "get_text_features", lambda **k: calls.append(len(k["input_ids"])) or inner(**k)
    )
    again = small.get(["a blue dog", "a red cat", "a blue dog"])
    assert calls == [1]
    assert torch.equal(again[1:2], alone)
    assert torch.equal(again[0], again[2])
    torch.testing.assert_close(again.norm(dim=-1), torch.ones(3))


def test_padding_after_the_end_changes_no_feature(small):
    tokens = tokenize(small.tokenizer, ["a cat", "two birds on a wire"])
    with torch.no_grad():
        padded = text_features(small.clip, tokens.ids, tokens.mask)
        short = text_features(small.clip, tokens.ids[:1, :8], tokens.mask[:1, :8])
        unmasked = text_features(small.clip, tokens.ids)
    torch.testing.assert_close(padded, unmasked, rtol=0, atol=0)
    torch.testing.assert_close(padded[:1], short, rtol=0, atol=1e-5)


def test_a_tokenizer_of_another_model_is_refused(small):
    with pytest.raises(ValueError, match="the tokenizer has 49408 tokens, the model knows 514"):
        PromptFeatures(small.clip, load_tokenizer(clean=True))
    small.clip.config.text_config.eos_token_id = 7
    with pytest.raises(ValueError, match=r"ends a text with token 513, the model reads .* token 7"):
        PromptFeatures(small.clip, small.tokenizer)
