"""Rewards over HTTP against a real server: what is sent, what is read, and every failure."""

import math
import time
import warnings

import numpy as np
import pytest
import torch
from rewards_vlm.judge_cases import PROMPTS, completion, images, opened, sent_picture

from headwater import http_failures as failures
from headwater.errors import PluginError
from headwater.protocols import LoadContext
from headwater.types import Prompt
from headwater_rewards_vlm.geneval import GenEval
from headwater_rewards_vlm.judges import UnifiedReward, VlmJudge
from support.scripted_server import Answer, serving


def by_level(number, payload):
    """The mark is the level of the image, in tenths, plus one."""
    _, picture = sent_picture(payload)
    tenth = round(float(np.asarray(picture).mean()) / 25.5)
    return completion(f"It looks fine.\nFinal Score: {1 + tenth}")


def test_each_image_is_sent_with_its_prompt_and_gets_its_own_score():
    with serving(by_level) as server:
        made = opened(UnifiedReward, server.url + "/v1", concurrency=2)
        scores = made.rate(images(), PROMPTS)
        requests = sorted(server.requests, key=lambda r: r[2]["messages"][0]["content"][1]["text"])
    assert scores.tolist() == [1, 2, 3]
    path, _, payload = requests[0]
    assert path == "/v1/chat/completions"
    assert (payload["model"], payload["temperature"], payload["max_tokens"]) == ("judge-1", 0, 4096)
    image, text = payload["messages"][0]["content"]
    assert (image["type"], text["type"]) == ("image_url", "text")
    assert [
        p.text in r[2]["messages"][0]["content"][1]["text"]
        for p, r in zip(sorted(PROMPTS, key=lambda p: p.text), requests, strict=True)
    ] == [True] * 3


@pytest.mark.parametrize(
    ("kind", "head", "loss"), [("png", "image/png", 0), ("jpeg", "image/jpeg", 8)]
)
def test_pictures_are_the_images_rounded_to_8_bits(kind, head, loss):
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(
        torch.rand(1, 3, 3, 3, generator=generator), (24, 32), mode="bilinear"
    )
    with serving(lambda *_: completion("Final Score: 3")) as server:
        opened(UnifiedReward, server.url, picture=kind).rate(smooth * 1.4 - 0.2, PROMPTS[:1])
        opened(UnifiedReward, server.url, picture_size=8).rate(smooth, PROMPTS[:1])
        (_, _, first), (_, _, second) = server.requests
    named, picture = sent_picture(first)
    assert named == f"data:{head};base64"
    wanted = ((smooth[0] * 1.4 - 0.2).clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()
    assert np.abs(np.asarray(picture).astype(float) - wanted).mean() <= loss
    assert sent_picture(second)[1].size == (8, 8)


def test_the_three_lines_of_unifiedreward_2_are_read_apart():
    answer = "Alignment Score (1-5): 4.5\nCoherence Score (1-5): 3\nStyle Score (1-5): 2\n"
    with serving(lambda *_: completion(answer)) as server:
        for aspect, value in (("alignment", 4.5), ("coherence", 3.0), ("style", 2.0)):
            made = opened(UnifiedReward, server.url, aspect=aspect)
            assert made.rate(images(1), PROMPTS[:1]).tolist() == [value]
        fraction = opened(UnifiedReward, server.url, aspect="alignment", scale="fraction")
        assert fraction.rate(images(1), PROMPTS[:1]).tolist() == pytest.approx([0.9])
        overall = opened(UnifiedReward, server.url)
        with pytest.raises(failures.InvalidReplyError, match=r"no 'Final Score:'.*'a red cat'"):
            overall.rate(images(1), PROMPTS[:1])


def test_the_shipped_questions_ask_for_the_lines_that_are_read():
    for made, lines in (
        (UnifiedReward(server="http://h", model="m"), ["Final Score: 3"]),
        (UnifiedReward(server="http://h", model="m", aspect="style"), ["Style Score (1-5): 3"]),
        (VlmJudge(server="http://h", model="m"), ["Score: 3"]),
    ):
        made.load(LoadContext("cpu"))
        asked = made.payload("", Prompt("p"))["messages"][0]["content"][1]["text"]
        assert asked.count("\np\n") == 1
        for line in lines:
            assert line.replace("3", "X") in asked.splitlines()
        reply = "\n".join(asked.splitlines()[-3:]).replace("X", "3")
        assert made.read({"choices": [{"message": {"content": reply}}]}) == 3


def test_a_question_of_ones_own(tmp_path):
    file = tmp_path / "question.txt"
    file.write_text("Rate: {prompt} ({prompt}) in {braces}. Mark: N")
    settings = {"template": str(file), "label": "Mark", "low": -1.0, "high": 1.0}
    with serving(lambda *_: completion("Mark: 0.5")) as server:
        made = opened(VlmJudge, server.url, **settings, extra={"seed": 3})
        assert made.rate(images(1), (Prompt("{prompt}"),)).tolist() == [0.5]
        payload = server.requests[0][2]
        assert payload["messages"][0]["content"][1]["text"] == (
            "Rate: {prompt} ({prompt}) in {braces}. Mark: N"
        )
        assert payload["seed"] == 3
        unit = opened(VlmJudge, server.url, **settings, scale="fraction")
        assert unit.rate(images(1), PROMPTS[:1]).tolist() == [0.75]
    file.write_text("no place")
    with pytest.raises(PluginError, match=r"has no \{prompt\}"):
        opened(VlmJudge, "http://h", **settings)
    with pytest.raises(PluginError, match="cannot be read"):
        opened(VlmJudge, "http://h", template=str(tmp_path / "none.txt"))
    with pytest.raises(ValueError, match="above low"):
        VlmJudge(server="http://h", model="m", low=3.0, high=3.0)
    with pytest.raises(ValueError, match="need a question of their own"):
        VlmJudge(server="http://h", model="m", label="Mark")
    with pytest.raises(ValueError, match="'model' is set by its own key"):
        VlmJudge(server="http://h", model="m", extra={"model": "x"})


FAILING = {
    "500": (lambda *_: Answer(b"{}", 500), failures.UnavailableError),
    "429": (lambda *_: Answer(b"", 429), failures.UnavailableError),
    "408": (lambda *_: Answer(b"", 408), failures.UnavailableError),
    "400": (lambda *_: Answer(b"no such model", 400), failures.RejectedError),
    "empty": (lambda *_: Answer(b""), failures.InvalidReplyError),
    "NaN": (lambda *_: Answer(b'{"correct": true, "score": NaN}'), failures.InvalidReplyError),
    "null": (lambda *_: Answer({"correct": None, "score": None}), failures.InvalidReplyError),
    "list": (lambda *_: Answer([{"correct": True}] * 3), failures.InvalidReplyError),
    "words": (lambda *_: completion("I cannot judge this."), failures.InvalidReplyError),
    "slow": (lambda *_: Answer({"correct": True}, drip=0.1), failures.DeadlineError),
    "never": (lambda *_: None, failures.ReplyTimeoutError),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("kind", [UnifiedReward, GenEval])
def test_a_failure_is_raised_or_nan_and_never_a_score(kind, name):
    respond, error = FAILING[name]
    settings = {"retries": 0, "timeout": 0.3, "deadline": 0.6}
    with serving(respond) as server:
        began = time.monotonic()
        with pytest.raises(error) as caught:
            opened(kind, server.url, **settings).rate(images(), PROMPTS)
        assert server.url in str(caught.value)
        masked = opened(kind, server.url, on_failure="nan", **settings)
        with pytest.warns(UserWarning, match=error.__name__):
            scores = masked.rate(images(), PROMPTS)
        assert time.monotonic() - began < 3
    assert scores.isnan().all() and scores.shape == (3,)


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_server_that_is_busy_once_is_asked_again(status):
    def respond(number, payload):
        return Answer(b"", status) if number == 0 else completion("Final Score: 2")

    with serving(respond) as server:
        assert opened(UnifiedReward, server.url).rate(images(1), PROMPTS[:1]).tolist() == [2]
        assert len(server.requests) == 2


def test_only_the_failed_samples_are_nan():
    def respond(_, payload):
        text = payload["messages"][0]["content"][1]["text"]
        return Answer(b"", 500) if "blue dog" in text else completion("Final Score: 4")

    with serving(respond) as server:
        made = opened(UnifiedReward, server.url, on_failure="nan", retries=0)
        with pytest.warns(UserWarning, match="now NaN"):
            first = made.rate(images(), PROMPTS)
        with warnings.catch_warnings():  # the same kind is told once
            warnings.simplefilter("error")
            second = made.rate(images(), PROMPTS)
    for scores in (first, second):
        assert scores[[0, 2]].tolist() == [4, 4] and math.isnan(scores[1])


def test_a_dead_server_ends_the_run_after_a_few_calls_though_failures_are_nan():
    with serving(lambda *_: completion("Final Score: 4")) as server:
        made = opened(UnifiedReward, server.url, on_failure="nan", retries=0, patience=2)
        assert made.rate(images(), PROMPTS).tolist() == [4, 4, 4]
        server.stop()
        with pytest.warns(UserWarning, match="UnreachableError"):
            assert made.rate(images(), PROMPTS).isnan().all()
        with pytest.raises(failures.UnreachableError):
            made.rate(images(), PROMPTS)


def test_the_token_comes_from_the_environment_and_is_not_told(monkeypatch):
    with serving(lambda *_: Answer(b"", 401)) as server:
        monkeypatch.setenv("JUDGE", "s3cret")
        made = opened(UnifiedReward, server.url, token_variable="JUDGE")
        with pytest.raises(failures.RejectedError) as caught:
            made.rate(images(1), PROMPTS[:1])
        assert server.requests[0][1]["Authorization"] == "Bearer s3cret"
        assert "s3cret" not in str(caught.value) + repr(made)
        monkeypatch.delenv("JUDGE")
        with pytest.raises(PluginError, match="JUDGE is not set"):
            opened(UnifiedReward, server.url, token_variable="JUDGE")
        monkeypatch.setenv("JUDGE", "a\nb")
        with pytest.raises(PluginError, match="token of printable ASCII"):
            opened(UnifiedReward, server.url, token_variable="JUDGE")


def test_odd_images_and_an_unloaded_reward_are_refused():
    made = opened(UnifiedReward, "http://127.0.0.1:9")
    with pytest.raises(ValueError, match="expected a prompt an image, got 2 for 3"):
        made.rate(images(), PROMPTS[:2])
    with pytest.raises(ValueError, match="expected images"):
        made.rate(torch.rand(1, 4, 8, 8), PROMPTS[:1])
    with pytest.raises(ValueError, match="not loaded"):
        UnifiedReward(server="http://h", model="m").rate(images(), PROMPTS)
    with pytest.raises(ValueError, match="expected an address"):
        UnifiedReward(server="h:80", model="m")
