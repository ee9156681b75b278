"""The reward on drawn signs, with the real engine, and its border at composition."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from headwater.composition import compose
from headwater.discovery import load
from headwater.errors import InputError
from headwater.protocols import LoadContext
from headwater.types import Batch, Prompt

EXAMPLE = Path(__file__).parents[2] / "plugins" / "rewards-ocr" / "examples" / "ocr.toml"
TINY = Path(__file__).parents[2] / "plugins" / "grpo" / "examples" / "flow-grpo.toml"


def sign(*lines):
    """(3, 160, 192), dark letters on a light board."""
    picture = Image.new("RGB", (192, 160), "#cfe3f5")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=40)
    for i, line in enumerate(lines):
        pen.text((10, 20 + 60 * i), line, fill="#102030", font=font)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def batch(*texts):
    count = len(texts)
    return Batch(tuple(Prompt(t) for t in texts), None, (0,) * count, (0,) * count, 160, 192, 1)


def ocr(**settings):
    reward = load("reward", "ocr", settings)
    reward.load(LoadContext("cpu"))
    return reward


@pytest.fixture(scope="module")
def reward():
    return ocr()


def test_a_drawn_sign_is_read_and_wrong_text_scores_lower(reward):
    images = torch.stack([sign("OPEN"), sign("OPON"), sign("CLOSED"), sign()])
    scores = reward.score(images, batch(*['a sign that says "Open"'] * 4))
    assert scores.dtype == torch.float32
    assert scores[0] == 1.0
    assert scores[1] == 0.75
    assert 0.0 <= scores[2] < 0.75
    assert scores[3] == 0.0


def test_each_image_is_judged_by_its_own_prompt(reward):
    words = ["BREAD", "Exit 4B", "hello!"]
    images = torch.stack([sign(word) for word in words])
    right = reward.score(images, batch(*(f"a board, “{word}”" for word in words)))
    wrong = reward.score(images, batch(*(f"a board, “{word}”" for word in words[1:] + words[:1])))
    assert right.tolist() == [1.0, 1.0, 1.0]
    assert float(wrong.max()) < 0.6


def test_engines_side_by_side_give_the_scores_of_one(reward):
    words = ["ONE", "TWO"]
    images = torch.stack([sign(word) for word in words])
    asked = batch(*(f'"{word}"' for word in ("ONE", "TOO")))
    assert torch.equal(ocr(engines=2, threads=1).score(images, asked), reward.score(images, asked))


def test_several_parts_and_the_first_only(reward):
    images = torch.stack([sign("FRIDAY", "JAZZ"), sign("JAZZ")])
    asked = batch(*['a poster "Jazz" above "Friday"'] * 2)
    assert reward.score(images, asked).tolist() == pytest.approx([1.0, 0.4])
    assert ocr(parts="first").score(images, asked).tolist() == [1.0, 1.0]
    counted = ocr(parts="first", surplus="counted").score(images, asked)
    assert counted.tolist() == [0.0, 1.0]


def test_an_image_that_is_not_finite_scores_nan_and_spares_the_others(reward):
    images = torch.stack([sign("OPEN"), sign("OPEN")])
    images[0, 0, 0, 0] = torch.nan
    scores = reward.score(images, batch('"OPEN"', '"OPEN"'))
    assert bool(scores[0].isnan())
    assert scores[1] == 1.0


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (12, 20)])
def test_odd_sizes_score_nothing_instead_of_failing(reward, size):
    assert reward.score(torch.rand(1, 3, *size), batch('"OPEN"')).tolist() == [0.0]


@pytest.mark.parametrize("size", [(3, 700), (700, 3)])
def test_thin_images_are_refused_since_the_engine_would_enlarge_them_for_minutes(reward, size):
    with pytest.raises(ValueError, match="at most 8 to 1, got"):
        reward.score(torch.rand(1, 3, *size), batch('"OPEN"'))


def test_a_prompt_without_a_quoted_text_is_an_error_of_the_run():
    small = ["reward={text={use='ocr'}}"]
    with pytest.raises(InputError) as caught:
        compose(TINY, small)
    (problem,) = [p for p in caught.value.problems if "file" in p]
    assert problem.startswith("[reward.text]: 2200 of the 2200 prompts of [prompts] file have no")
    assert "'a green square on a grey background'" in problem


def test_a_held_out_reward_reads_only_the_evaluation_prompts():
    with pytest.raises(InputError) as caught:
        compose(TINY, ["evaluation.reward={text={use='ocr'}}"])
    (problem,) = caught.value.problems
    assert "[evaluation.reward.text]" in problem
    assert "[evaluation] prompts" in problem


def test_a_prompt_that_slips_through_is_named(reward):
    with pytest.raises(ValueError, match="'a green square'"):
        reward.score(sign("OPEN")[None], batch("a green square"))


def test_the_example_composes_and_every_prompt_of_it_asks_for_a_text():
    run = compose(EXAMPLE)
    assert run.rewards["text"].plugin.problems(run) == []
    assert len(run.prompts) >= 16


@pytest.mark.parametrize("bad", [{"confidence": 1.5}, {"engines": 0}, {"parts": "last"}])
def test_settings_are_checked(bad):
    with pytest.raises(InputError):
        load("reward", "ocr", bad)
