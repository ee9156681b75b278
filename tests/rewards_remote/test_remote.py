"""The reward `remote` against real servers, good and bad, and in a run."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from served import serving

from headwater.composition import compose
from headwater.discovery import load
from headwater.errors import GuardError, InputError
from headwater.http_failures import (
    InvalidReplyError,
    RejectedError,
    UnavailableError,
    UnreachableError,
)
from headwater.protocols import LoadContext
from headwater.rewards import compose_rewards
from headwater.stage import open_stage
from headwater.trainer import Trainer
from headwater.types import Batch, Prompt
from support.scripted_server import Answer
from support.scripted_server import serving as scripted

EXAMPLES = Path(__file__).parents[2] / "plugins" / "rewards-remote" / "examples"
RUN = Path(__file__).parents[2] / "plugins" / "grpo" / "examples" / "flow-grpo.toml"
SMALL = [
    "steps=2",
    "prompts.per_step=2",
    "prompts.group=3",
    "prompts.micro_batch=3",
    "rollout.steps=4",
    "rollout.guidance=1.0",
    "output.trackers=[]",
]

NO_JUDGE = "evaluation={}"


def remote(url, reward="echo", **settings):
    made = load("reward", "remote", {"url": url, "reward": reward, "retries": 0, **settings})
    made.load(LoadContext("cpu"))
    return made


def images_of(values):
    images = torch.zeros(len(values), 3, 4, 4)
    images[:, 0, 0, 0] = torch.tensor(values)
    return images


def batch_of(texts):
    count = len(texts)
    return Batch(tuple(map(Prompt, texts)), None, (0,) * count, (0,) * count, 4, 4, 1)


def scores(reward, values, texts=None):
    texts = texts or [str(round(value * 1000)) for value in values]
    return reward.score(images_of(values), batch_of(texts))


@pytest.mark.parametrize("per_request", [1, 3, 100])
def test_scores_come_in_the_order_of_the_images(server, per_request):
    values = [round(0.01 * n, 2) for n in range(1, 21)]
    found = scores(remote(server.url, per_request=per_request), values)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.tensor(values))


def test_200_images_from_8_threads_lose_and_swap_nothing(server):
    """Eight runs that share a server, as the processes of a training do."""
    reward = remote(server.url, concurrency=2)
    parts = [[round(0.001 * (25 * k + n + 1), 3) for n in range(25)] for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: scores(reward, part), parts))
    assert torch.equal(torch.stack(found), torch.tensor(parts))


def test_float64_scores_stay_float64(server):
    assert scores(remote(server.url, "sizes"), [0.5]).dtype == torch.float64


def test_a_two_step_run_gives_the_scores_of_the_local_reward(server):
    """Two updates: the second step's images come from weights that the first scores changed."""
    local = 'reward={judge={use="tiny-detector"}}'
    far = f'reward={{judge={{use="remote",url="{server.url}",reward="detector"}}}}'
    found = []
    for rewards in (local, far):
        trainer = Trainer(open_stage(compose(RUN, [*SMALL, NO_JUDGE, rewards]), "cpu"))
        steps = []
        for index in range(2):
            metrics = trainer.step(index).metrics
            values = torch.cat([c.rewards["judge"] for c in trainer.collected])
            steps.append((values, metrics["reward/judge"], metrics["grad_norm"]))
        found.append(steps)
    for (near, *rest), (away, *others) in zip(*found, strict=True):
        assert torch.equal(near, away)
        assert rest == others
    assert float(found[0][0][0].std()) > 0
    assert found[0][0][2] > 0


@pytest.mark.parametrize("on_failure", ["fail", "nan"])
def test_an_image_that_is_not_finite_is_nan_as_with_a_local_reward(server, on_failure):
    reward = remote(server.url, "broken", on_failure=on_failure)
    images = images_of([0.25, 0.5])
    images[0, 1, 2, 3] = torch.inf
    found = reward.score(images, batch_of(["a", "b"]))
    assert bool(found[0].isnan())
    assert found[1] == 0.5


def test_a_score_that_is_not_finite_stops_the_run_or_is_nan(server):
    with pytest.raises(RejectedError, match="nonfinite-score"):
        scores(remote(server.url, "broken"), [0.5, 1.0])
    lenient = remote(server.url, "broken", on_failure="nan")
    with pytest.warns(UserWarning, match="1 images have no score, first: .*nonfinite-score"):
        found = scores(lenient, [0.5, 1.0, 0.25])
    assert found.isnan().tolist() == [False, True, False]
    assert lenient.measured() == {"failed_images": 1.0}
    assert lenient.measured() == {"failed_images": 0.0}


def test_a_failed_request_leaves_the_decision_to_the_guard():
    """The second of six images has no score: the run stops, or its prompt's group is dropped."""

    def respond(number, payload):
        if payload is None:
            return Answer({"protocol": 1, "rewards": {"echo": {"identity": "x"}}})
        seen.append(number)
        if len(seen) == 2:
            return Answer({}, status=500)
        return Answer({"scores": {"echo": {**GOOD, "values": [number / 8]}}})

    for guard in ("fail", "drop-group"):
        seen = []
        with scripted(respond) as s:
            far = (
                f'reward={{far={{use="remote",url="{s.url}",reward="echo",on_failure="nan",'
                "retries=0,concurrency=1}}"
            )
            sets = [*SMALL, far, NO_JUDGE, f"guard.nonfinite_reward={guard}"]
            trainer = Trainer(open_stage(compose(RUN, sets), "cpu"))
            with pytest.warns(UserWarning, match="1 images have no score, first: .*status 500"):
                if guard == "fail":
                    with pytest.raises(GuardError, match="'far' is nan for 1 of"):
                        trainer.step(0)
                else:
                    metrics = trainer.step(0).metrics
                    assert metrics["samples_dropped"] == 3
                    assert metrics["reward/far/failed_images"] == 1
                    assert metrics["grad_norm"] > 0


def test_the_token_is_sent_and_not_shown(tmp_path, monkeypatch):
    secret = "kept-between-us"
    monkeypatch.setenv("REWARD_TOKEN", secret)
    with scripted(
        lambda _, __: Answer({"protocol": 1, "rewards": {"echo": {"identity": "x"}}})
    ) as s:
        reward = remote(s.url, token_env="REWARD_TOKEN")
        assert s.requests[0][1]["Authorization"] == f"Bearer {secret}"
        assert secret not in repr(reward)
    with scripted(lambda _, __: Answer({}, status=401)) as s:
        with pytest.raises(RejectedError, match="is the token right") as caught:
            remote(s.url, token_env="REWARD_TOKEN")
        assert secret not in str(caught.value)
    monkeypatch.delenv("REWARD_TOKEN")
    with pytest.raises(InputError, match="REWARD_TOKEN is not set"):
        remote("http://127.0.0.1:9", token_env="REWARD_TOKEN")


def test_a_reward_that_the_server_lacks_is_an_input_error(server):
    with pytest.raises(
        InputError, match=r"no reward 'detectr'; it serves .*; did you mean 'detector'"
    ):
        remote(server.url, "detectr")


def test_a_server_that_is_not_there_or_none_of_ours():
    with pytest.raises(UnreachableError):
        remote("http://127.0.0.1:9")
    for answer in ({}, [], {"protocol": 2, "rewards": {"echo": {}}}, {"rewards": {"echo": {}}}):
        ours = pytest.raises(InvalidReplyError, match="speaks protocol 1")
        with scripted(lambda _, __, answer=answer: Answer(answer)) as s, ours:
            remote(s.url)


def test_a_server_that_goes_away_fails_typed_or_leaves_nan(tmp_path):
    with serving(tmp_path) as found:
        strict, lenient = remote(found.url), remote(found.url, on_failure="nan")
        assert scores(strict, [0.25]) == 0.25
        found.stop()
        with pytest.raises(UnreachableError):
            scores(strict, [0.25, 0.5])
        with pytest.warns(UserWarning, match="2 images have no score"):
            assert bool(scores(lenient, [0.25, 0.5]).isnan().all())


GOOD = {"values": [0.5], "dtype": "float32", "identity": "x"}


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (Answer({"scores": {}}), InvalidReplyError, "expected scores of the reward"),
        (Answer([3]), InvalidReplyError, "expected scores of the reward"),
        (
            Answer({"scores": {"echo": {**GOOD, "values": [0.5, 0.5]}}}),
            InvalidReplyError,
            "expected 1",
        ),
        (Answer({"scores": {"echo": {**GOOD, "values": [None]}}}), InvalidReplyError, "expected 1"),
        (Answer({"scores": {"echo": {**GOOD, "values": [True]}}}), InvalidReplyError, "expected 1"),
        (Answer({"scores": {"echo": {**GOOD, "values": "5"}}}), InvalidReplyError, "expected 1"),
        (Answer(b'{"scores": {"echo": {"values": [NaN]}}}'), InvalidReplyError, "no JSON"),
        (Answer(b""), InvalidReplyError, "empty"),
        (Answer({"scores": {"echo": {**GOOD, "identity": "y"}}}), InvalidReplyError, "another one"),
        (Answer({}, status=503), UnavailableError, "503"),
        (Answer({}, status=422), RejectedError, "422"),
    ],
)
@pytest.mark.parametrize("on_failure", ["fail", "nan"])
def test_answers_that_will_not_do_are_typed_or_nan_and_never_zero(answer, kind, said, on_failure):
    listing = Answer({"protocol": 1, "rewards": {"echo": {"identity": "x"}}})
    with scripted(lambda number, _: listing if number == 0 else answer) as s:
        reward = remote(s.url, on_failure=on_failure)
        if on_failure == "fail":
            with pytest.raises(kind, match=said):
                scores(reward, [0.25])
        else:
            with pytest.warns(UserWarning, match=said):
                assert bool(scores(reward, [0.25]).isnan())


def test_a_good_answer_warns_of_nothing(server):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scores(remote(server.url, on_failure="nan"), [0.5]) == 0.5


def test_input_images_are_refused_since_they_would_stay_behind(server):
    prompt = Prompt("make it red", images=("a.png",))
    with pytest.raises(ValueError, match="no input images"):
        remote(server.url).score(images_of([0.5]), Batch((prompt,), None, (0,), (0,), 4, 4, 1))


def test_the_examples_compose_and_fit_each_other():
    asked = compose(EXAMPLES / "remote.toml").rewards["detector"].plugin
    assert asked.reward in compose_rewards(EXAMPLES / "server" / "rewards.toml")
