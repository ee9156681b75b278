"""The server as a process: what it answers, to many at once, and how it ends."""

import http.client
import json
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import uvicorn
from served import ask, body, serving

from headwater.composition import Named
from headwater.discovery import find
from headwater.protocols import LoadContext
from headwater.rewards import scorer
from headwater.types import Batch, Prompt
from headwater_rewards_remote.application import Limits, Service, application
from headwater_rewards_remote.pictures import encode
from headwater_tiny.rewards import TinyDetector, TinyPreference


def error_of(answer):
    status, found = answer
    return status, found["error"]["type"], found["error"]["message"]


def test_health_and_rewards_say_names_versions_and_eight_bit_images(server):
    status, health = ask(server.url + "/health")
    assert status == 200
    assert health["status"] == "ok"
    assert health["eight_bit"] is False
    assert health["rewards"] == ["echo", "sizes", "broken", "detector", "preference"]
    assert {"version", "headwater", "protocol"} <= set(health)
    status, found = ask(server.url + "/rewards")
    assert found["eight_bit"] is False
    assert found["limits"] == {"body_bytes": 2**20, "pixels": 20000}
    echo, detector = found["rewards"]["echo"], found["rewards"]["detector"]
    assert (echo["name"], echo["distribution"], echo["version"]) == ("echo", "odd-rewards", "1.0")
    assert detector["settings"] == {"measure": "correct"}
    assert echo["identity"] != detector["identity"]


def test_200_requests_from_8_threads_lose_and_swap_nothing(server):
    """Each image and its prompt say the same number; the reward checks the pair and gives it."""
    values = [round(0.001 * n, 3) for n in range(1, 201)]

    def one(value):
        return ask(server.url + "/score", body("echo", values=[value]))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, values))
    assert [status for status, _ in answers] == [200] * 200
    found = [answer["scores"]["echo"]["values"] for _, answer in answers]
    assert torch.equal(torch.tensor(found), torch.tensor(values)[:, None])


def test_requests_that_wait_are_scored_in_one_call(server):
    """While one call runs the others queue up, and the next call takes them together."""
    with ThreadPoolExecutor(8) as pool:
        payload = body("sizes", values=[0.5, 0.5])
        answers = list(pool.map(lambda _: ask(server.url + "/score", payload), range(8)))
    sizes = [answer["scores"]["sizes"]["values"][0] for _, answer in answers]
    assert max(sizes) > 2
    assert max(sizes) <= 16


def test_one_request_asks_several_rewards(server):
    _, answer = ask(server.url + "/score", body("echo", "broken", "sizes", values=[0.125, 0.25]))
    scores = answer["scores"]
    assert list(scores) == ["echo", "broken", "sizes"]
    assert scores["echo"]["values"] == scores["broken"]["values"] == [0.125, 0.25]
    assert [scores[key]["dtype"] for key in scores] == ["float32", "float32", "float64"]


@pytest.mark.parametrize("kind", ["float32", "uint8", "png"])
def test_scores_are_those_of_the_reward_itself(server, kind):
    """The detector on the images as they arrive; 8-bit formats round them first."""
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    texts = ["a green square on a grey background"] * 3
    payload = {"rewards": ["detector"], "images": encode(images, kind)}
    payload["prompts"] = [{"text": text} for text in texts]
    _, answer = ask(server.url + "/score", payload)
    rounded = images if kind == "float32" else (images * 255).round() / 255
    named = Named("detector", TinyDetector(), find("reward", "tiny-detector"))
    batch = Batch(tuple(map(Prompt, texts)), None, (0,) * 3, (0,) * 3, 32, 32, 1)
    expected = scorer(named)(rounded, batch)
    assert answer["scores"]["detector"]["values"] == expected.tolist()


PICKLE = pickle.dumps({"rewards": ["echo"]})
ECHO = body("echo")


@pytest.mark.parametrize(
    ("raw", "headers", "status", "kind", "said"),
    [
        (PICKLE, {"Content-Type": "application/octet-stream"}, 415, "not-json", "JSON only"),
        (PICKLE, {}, 422, "invalid-request", "the body is no JSON"),
        (b"", {"Content-Type": "text/plain"}, 415, "not-json", "JSON only"),
        (b"{", {}, 422, "invalid-request", "the body is no JSON"),
        (b"[" * 100_000, {}, 422, "invalid-request", "the body is no JSON"),
        (b'{"rewards": NaN}', {}, 422, "invalid-request", "NaN is no JSON number"),
        (b"\xff\xfe", {}, 422, "invalid-request", "the body is no JSON"),
        (b"[1]", {}, 422, "invalid-request", "expected an object"),
        (b"{}", {}, 422, "invalid-request", "the key 'rewards' is missing"),
        (b" " * (2**20 + 1), {}, 413, "too-large", "1048577 bytes, more than the 1048576"),
    ],
)
def test_bodies_that_will_not_do(server, raw, headers, status, kind, said):
    found = error_of(ask(server.url + "/score", raw=raw, headers=headers))
    assert found[:2] == (status, kind)
    assert said in found[2]


@pytest.mark.parametrize(
    ("payload", "status", "kind", "said"),
    [
        (body("eco"), 404, "unknown-reward", "preference; did you mean 'echo'?"),
        (body(), 422, "invalid-request", "rewards: expected a list"),
        (body("echo", "echo"), 422, "invalid-request", "listed twice"),
        ({**ECHO, "rewards": "echo"}, 422, "invalid-request", "rewards: expected a list"),
        ({**ECHO, "rewards": [3]}, 422, "invalid-request", "rewards: expected a list"),
        ({**ECHO, "seed": 3}, 422, "invalid-request", "the key 'seed' is unknown"),
        ({**ECHO, "prompts": []}, 422, "invalid-request", "prompts: expected a list of objects"),
        ({**ECHO, "prompts": ["a"]}, 422, "invalid-request", "prompts[0]: expected an object"),
        (
            {**ECHO, "prompts": [{"text": 3}]},
            422,
            "invalid-request",
            "prompts[0]: expected an object",
        ),
        (
            {**ECHO, "prompts": [{"text": "a", "images": []}]},
            *(422, "invalid-request", "prompts[0]: unknown key 'images'"),
        ),
        (
            {**ECHO, "prompts": [{"text": "a", "metadata": 3}]},
            *(422, "invalid-request", "prompts[0].metadata: expected a dict"),
        ),
        (
            {**ECHO, "prompts": [{"text": "a"}] * 2},
            *(422, "invalid-request", "one prompt an image, got 2 for 1"),
        ),
        (
            {**ECHO, "images": {**ECHO["images"], "shape": [1, 3, 4, 5]}},
            *(422, "invalid-request", "the shape asks for 240 bytes, got 192"),
        ),
        (
            {**ECHO, "images": {**ECHO["images"], "shape": [99, 3, 400, 400]}},
            *(413, "too-large", "15840000 pixels are more than the 20000"),
        ),
        (body("detector"), 422, "refused-by-reward", "judges images (B, 3, 32, 32)"),
        (body("broken", values=[0.5, 1.0]), 422, "nonfinite-score", "1 of 2 images"),
        (body("broken", texts=["crash"]), 500, "reward-failed", "RuntimeError: out of memory, say"),
        (body("broken", texts=["odd"]), 500, "reward-failed", "expected scores of shape (1,)"),
    ],
)
def test_requests_that_will_not_do(server, payload, status, kind, said):
    found = error_of(ask(server.url + "/score", payload))
    assert found[:2] == (status, kind)
    assert said in found[2]
    assert "\n" not in found[2]
    assert ask(server.url + "/score", ECHO)[0] == 200


def test_a_score_that_is_not_finite_is_named_by_its_sample(server):
    _, found = ask(server.url + "/score", body("broken", values=[0.5, 1.0, 0.25, 1.0]))
    assert found["error"]["samples"] == [1, 3]


def test_a_bad_request_does_not_spoil_those_it_waits_with(server):
    good, bad = body("broken", values=[0.5]), body("broken", values=[0.5], texts=["crash"])
    with ThreadPoolExecutor(8) as pool:
        every = [bad if i % 4 == 0 else good for i in range(32)]
        answers = list(pool.map(lambda p: ask(server.url + "/score", p), every))
    assert [status for status, _ in answers] == [500, 200, 200, 200] * 8


def test_a_body_in_chunks_is_measured_as_it_comes(server):
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request(
        "POST",
        "/score",
        (b" " * 2**18 for _ in range(8)),
        {"Content-Type": "application/json"},
        encode_chunked=True,
    )
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["type"] == "too-large"


def test_a_body_that_does_not_come_is_given_up():
    """A client that states 99 bytes and sends one; in a thread, to set the seconds."""
    service = Service({}, Limits(seconds=0.2))
    config = uvicorn.Config(application(service), log_config=None, ws="none")
    web = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=web.run, args=([listening],))
        thread.start()
        with socket.create_connection(listening.getsockname(), timeout=20) as connection:
            connection.sendall(b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
            answer = connection.recv(4096)
        web.should_exit = True
        thread.join()
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("path", ["/", "/score", "/docs", "/rewards/echo"])
def test_another_path_or_method_is_told_the_right_ones(server, path):
    status, kind, said = error_of(ask(server.url + path))
    assert status in (404, 405)
    assert kind == "no-such-path"
    assert "POST /score" in said


def test_a_client_that_leaves_in_the_middle_does_no_harm(server):
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (
        b"",
        b"POST /sc",
        b"POST /score HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
        b"\0\0\0",
    ):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    assert ask(server.url + "/score", ECHO)[0] == 200


SECRET = "kept-between-us"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with a token, one reward and images of 8 bits, and what it said until its end."""
    folder = tmp_path_factory.mktemp("guarded")
    env = {"SERVE_TOKEN": SECRET}
    options = ("--token-env", "SERVE_TOKEN", "--eight-bit", "--only", "broken")
    with serving(folder, *options, env=env) as found:
        yield found
        assert SECRET not in found.announcement + found.stop()[1]


def test_a_token_is_needed_on_every_path_and_never_shown(guarded):
    for path in ("/health", "/rewards", "/score", "/nowhere"):
        for headers in ({}, {"Authorization": SECRET}, {"Authorization": "Bearer wrong"}):
            status, kind, said = error_of(ask(guarded.url + path, headers=headers))
            assert (status, kind) == (401, "unauthorized")
            assert SECRET not in said
        right = {"Authorization": f"Bearer {SECRET}"}
        status, answer = ask(guarded.url + path, headers=right)
        assert status == {"/score": 405, "/nowhere": 404}.get(path, 200)
        assert SECRET not in json.dumps(answer)


def test_rounding_to_eight_bits_is_declared_and_done(guarded):
    right = {"Authorization": f"Bearer {SECRET}"}
    assert ask(guarded.url + "/health", headers=right)[1]["eight_bit"] is True
    assert list(ask(guarded.url + "/rewards", headers=right)[1]["rewards"]) == ["broken"]
    _, answer = ask(guarded.url + "/score", body("broken", values=[0.3]), headers=right)
    (value,) = answer["scores"]["broken"]["values"]
    assert value == pytest.approx(round(0.3 * 255) / 255, abs=1e-7)
    assert value != pytest.approx(0.3, abs=1e-5)


def test_float64_scores_arrive_bit_for_bit(server):
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    text = "a green square on a grey background"
    payload = {"rewards": ["preference"], "images": encode(images, "float32")}
    payload["prompts"] = [{"text": text}] * 2
    _, answer = ask(server.url + "/score", payload)
    named = Named("preference", TinyPreference("float64"), find("reward", "tiny-preference"))
    named.plugin.load(LoadContext("cpu"))
    batch = Batch((Prompt(text),) * 2, None, (0, 0), (0, 0), 32, 32, 1)
    expected = scorer(named)(images, batch)
    assert answer["scores"]["preference"]["dtype"] == "float64"
    assert answer["scores"]["preference"]["values"] == expected.tolist()
