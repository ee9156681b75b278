"""The rewards of a run file without the rest of a run."""

import pytest
import torch

from headwater.errors import InputError
from headwater.rewards import compose_rewards, scorer
from headwater.types import Batch, Prompt


def test_trained_and_held_out_rewards_are_made_by_key_and_nothing_else_is_read(run_file):
    path = run_file({'use = "toy"': 'use = "no-such-backbone"'})
    found = compose_rewards(path, ["reward.brightness.weight=2.0"])
    assert {key: (n.key, n.entry.name) for key, n in found.items()} == {
        "brightness": ("reward.brightness", "toy-brightness"),
        "count": ("evaluation.reward.count", "toy-count"),
    }


def test_all_problems_of_the_rewards_come_at_once(run_file):
    path = run_file({"toy-brightness": "toy-brightnes", "toy-count": 'toy-count"\nspeed = "3'})
    with pytest.raises(InputError) as caught:
        compose_rewards(path)
    first, second = caught.value.problems
    assert first.startswith("[reward.brightness] use: no reward named 'toy-brightnes'")
    assert second == "[evaluation.reward.count] speed: unknown key"


@pytest.mark.parametrize("text", ["", "reward = 3", "[reward]", "[rewards.a]\nuse = 'b'"])
def test_a_file_without_rewards_is_refused(tmp_path, text):
    path = tmp_path / "empty.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"expected at least one table \[reward.KEY\]"):
        compose_rewards(path)


def test_a_key_may_not_be_trained_and_held_out(run_file):
    path = run_file({"[evaluation.reward.count]": "[evaluation.reward.brightness]"})
    with pytest.raises(InputError, match="the key is a trained reward's"):
        compose_rewards(path)


def test_images_of_inference_mode_are_judged(run_file):
    named = compose_rewards(run_file())["brightness"]
    with torch.inference_mode():
        images = torch.full((1, 3, 4, 4), 0.25)
        batch = Batch((Prompt("p"),), None, (0,), (0,), height=4, width=4, steps=1)
        assert scorer(named)(images, batch).tolist() == [0.25]
