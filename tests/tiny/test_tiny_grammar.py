"""The grammar, the prompt lists and the tokenizer."""

from importlib import resources

import pytest
import torch

from headwater_tiny.grammar import CATEGORIES, VOCABULARY, describe, parse, sample_scene
from headwater_tiny.text import LENGTH, tokenize


def prompts(name):
    file = resources.files("headwater_tiny").joinpath("prompts", f"{name}.txt")
    return file.read_text().splitlines()


def test_every_sampled_scene_is_parsed_back_from_its_prompt():
    generator = torch.Generator().manual_seed(0)
    scenes = [sample_scene(generator) for _ in range(1000)]
    assert [parse(describe(scene)) for scene in scenes] == scenes
    assert {scene.category for scene in scenes} == set(CATEGORIES)


def test_every_shipped_prompt_is_described_as_it_is_written():
    texts = prompts("train") + prompts("eval")
    assert [describe(parse(text)) for text in texts] == texts


def test_every_word_of_the_vocabulary_occurs_in_the_training_prompts():
    used = {word for text in prompts("train") for word in text.split()}
    assert used == set(VOCABULARY)


def test_training_and_evaluation_prompts_are_disjoint_and_distinct():
    train, held_out = prompts("train"), prompts("eval")
    assert len(set(train)) == len(train) >= 2000
    assert len(set(held_out)) == len(held_out) >= 512
    assert not set(train) & set(held_out)


def test_evaluation_prompts_are_balanced_over_the_categories():
    counts = dict.fromkeys(CATEGORIES, 0)
    for text in prompts("eval"):
        counts[parse(text).category] += 1
    assert set(counts.values()) == {90}


def test_an_unknown_word_is_named():
    with pytest.raises(ValueError, match="unknown word 'elephant'"):
        tokenize(["a red elephant on a white background"])


@pytest.mark.parametrize(
    "text",
    [
        "a red circle",
        "a red circle on a white",
        "red circle on a white background",
        "two red circle on a white background",
        "a orange circle on a white background",
        "a red circle above on a white background",
        "a red circle above two blue squares on a white background",
        "a red circle at the red of a white background",
    ],
)
def test_known_words_that_form_no_prompt_are_refused(text):
    with pytest.raises(ValueError, match="not a prompt of the grammar"):
        parse(text)


def test_the_empty_prompt_is_padding_and_the_longest_prompt_fits():
    assert tokenize([""]).eq(0).all()
    longest = max(prompts("train"), key=lambda text: len(text.split()))
    assert tokenize([longest]).shape == (1, LENGTH)
    assert len(longest.split()) == LENGTH
