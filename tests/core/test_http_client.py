"""The JSON client against a real server that misbehaves in every way it can."""

import socket
import threading
import time

import pytest

from headwater import http_failures as failures
from headwater.errors import HeadwaterError, InputError
from headwater.http_address import token_of
from headwater.http_client import JsonClient
from support.scripted_server import Answer, serving


def client(server, **settings):
    given = {"timeout": 2.0, "deadline": 5.0, "retries": 2, "backoff": 0.01, **settings}
    return JsonClient(getattr(server, "url", server), **given)


def echo(_, payload):
    return Answer({"you": payload})


def test_answers_come_in_the_order_of_the_payloads():
    def respond(number, payload):  # later requests are answered sooner
        return Answer({"n": payload}, pause=0.002 * (20 - payload))

    with serving(respond) as server:
        answers = client(server).post_all("/score", list(range(20)))
    assert answers == [{"n": n} for n in range(20)]


def test_many_threads_lose_and_swap_nothing():
    found = {}
    with serving(echo) as server:
        shared = client(server, concurrency=4)

        def use(name):
            found[name] = shared.post_all("/", [[name, i] for i in range(25)])

        threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {n: [{"you": [n, i]} for i in range(25)] for n in range(8)}
    assert len(server.requests) == 200


def test_no_more_requests_than_allowed_and_no_payload_read_early():
    read = []

    def payloads():
        for i in range(12):
            read.append(i)
            yield i

    ahead = []

    def respond(number, payload):
        ahead.append(len(read) - number)
        return Answer(payload, pause=0.02)

    with serving(respond) as server:
        client(server, concurrency=3).post_all("/", payloads())
        # The server may count one more, whose answer it has just sent.
        assert server.most in (3, 4)
    assert max(ahead) <= 3


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_status_that_may_pass_is_tried_again(status):
    def respond(number, _):
        return Answer({"ok": 1}) if number == 2 else Answer(b"busy", status)

    with serving(respond) as server:
        assert client(server).post("/", {}) == {"ok": 1}
        assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301])
def test_a_status_that_will_not_pass_is_not_tried_again(status):
    headers = {"Location": "http://127.0.0.1:1/"}
    with serving(lambda *_: Answer(b"no such model", status, headers)) as server:
        with pytest.raises(failures.RejectedError, match="no such model") as caught:
            client(server).post("/v1", {})
        assert len(server.requests) == 1
    assert caught.value.status == status
    assert caught.value.url == server.url + "/v1"


CASES = {
    "an error at every attempt": (Answer(b"{}", 500), failures.UnavailableError, 3, 500),
    "an empty body": (Answer(b""), failures.InvalidReplyError, 1, 200),
    "no JSON": (Answer(b"<html>hello"), failures.InvalidReplyError, 1, 200),
    "NaN": (Answer(b'{"score": NaN}'), failures.InvalidReplyError, 1, 200),
    "infinity": (Answer(b"[-Infinity]"), failures.InvalidReplyError, 1, 200),
    "a number beyond floats": (Answer(b"[1e999]"), failures.InvalidReplyError, 1, 200),
    "deep nesting": (Answer(b"[" * 200_000), failures.InvalidReplyError, 1, 200),
    "bytes of no alphabet": (Answer(b"\xff\xfe\x00\x80"), failures.InvalidReplyError, 1, 200),
    "too much": (Answer(b'"' + b"x" * 5000 + b'"'), failures.ReplySizeError, 1, 200),
    "half an answer": (Answer(b'{"a": 1}', cut=10), failures.UnreachableError, 3, None),
    "silence": (None, failures.ReplyTimeoutError, 3, None),
}


@pytest.mark.parametrize("name", CASES)
def test_every_failure_has_its_class_with_address_status_and_attempts(name):
    answer, kind, attempts, status = CASES[name]
    with serving(lambda *_: answer) as server:
        began = time.monotonic()
        with pytest.raises(kind) as caught:
            client(server, reply_limit=1000 if name == "too much" else 10**6, timeout=0.2).post(
                "/score", {"a": 1}
            )
        seconds = time.monotonic() - began
        assert len(server.requests) == attempts
    error = caught.value
    assert type(error) is kind
    assert isinstance(error, HeadwaterError) and error.exit_code == 1
    assert (error.attempts, error.status) == (attempts, status)
    said = f"{server.url}/score: "
    assert str(error).startswith(said) and f"after {attempts} attempt" in str(error)
    assert seconds < 2


def test_a_closed_port_is_unreachable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(failures.UnreachableError, match="ConnectionRefusedError"):
        client(f"http://127.0.0.1:{port}").post("/", {})


def test_a_server_of_another_protocol_is_no_http():
    def talk(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"220 mail.example ESMTP\r\n")
            connection.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=talk, args=(listener,), daemon=True).start()
        with pytest.raises(failures.InvalidReplyError, match="no HTTP"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").post("/", {})


@pytest.mark.parametrize("answer", [Answer(b'{"a": 1}', drip=0.1), None])
def test_a_slow_or_silent_server_costs_the_deadline_and_no_more(answer):
    with serving(lambda *_: answer) as server:
        began = time.monotonic()
        with pytest.raises(failures.DeadlineError, match=r"deadline of 0\.3 s"):
            client(server, deadline=0.3, timeout=30.0, retries=5).post_all("/", range(20))
        assert time.monotonic() - began < 1.0


def test_a_wait_that_would_pass_the_deadline_is_not_begun():
    busy = Answer(b"", 429, {"Retry-After": "7"})
    with serving(lambda *_: busy) as server:
        began = time.monotonic()
        with pytest.raises(failures.DeadlineError, match="status 429"):
            client(server, deadline=3.0).post("/", {})
        assert time.monotonic() - began < 1.0
        assert len(server.requests) == 1


def test_the_servers_wish_to_wait_is_kept():
    def respond(number, _):
        return Answer([1]) if number else Answer(b"", 503, {"Retry-After": "1"})

    with serving(respond) as server:
        began = time.monotonic()
        assert client(server).post("/", {}) == [1]
        assert time.monotonic() - began >= 1.0


def test_each_payload_keeps_its_own_failure():
    def respond(_, payload):
        return Answer(b"", 500) if payload == 1 else Answer(payload)

    with serving(respond) as server:
        first, second, third = client(server).post_each("/", [0, 1, 2])
    assert (first, third) == (0, 2)
    assert isinstance(second, failures.UnavailableError)


def test_the_deadline_keeps_what_came_before_it():
    with serving(lambda _, payload: Answer(payload) if payload else None) as server:
        answers = client(server, deadline=0.4, timeout=9.0, concurrency=2).post_each("/", [1, 0, 2])
    assert answers[0] == 1 and answers[2] == 2
    assert isinstance(answers[1], failures.DeadlineError)
    assert answers[1].attempts == 1


def test_the_first_failure_ends_the_call():
    def respond(_, payload):
        return Answer(b"", 404) if payload == 0 else Answer(payload, pause=0.05)

    with serving(respond) as server:
        with pytest.raises(failures.RejectedError):
            client(server, concurrency=2).post_all("/", range(200))
        assert len(server.requests) < 10


def test_no_thread_outlives_a_call_for_long():
    with serving(lambda *_: None) as server, pytest.raises(failures.DeadlineError):
        client(server, deadline=0.2, timeout=30.0).post("/", {})
    time.sleep(0.1)
    assert not [t for t in threading.enumerate() if t.name.startswith("headwater-http")]


def test_a_token_is_sent_and_never_shown():
    with serving(lambda *_: Answer(b"", 401)) as server:
        secret = client(server, token="s3cret")
        with pytest.raises(failures.RejectedError, match="is the token right") as caught:
            secret.post("/", {})
        assert server.requests[0][1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(secret) + str(caught.value)
    with pytest.raises(ValueError) as wrong:
        JsonClient("http://h", token="s3\r\nX: y")
    assert "s3" not in str(wrong.value)


def test_a_token_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("JUDGE_TOKEN", "abc")
    assert token_of("JUDGE_TOKEN") == "abc"
    assert token_of("") == ""
    with pytest.raises(InputError, match="NO_SUCH is not set"):
        token_of("NO_SUCH")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://h:0",
        "http://h/?a=1",
        "http://me:pw@h",
        "http://h /x",
        "http://h\r\nX:1",
        "http://h#f",
        "http://[::1",
        "http://é",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(ValueError, match="expected an address"):
        JsonClient(address)


def test_an_address_may_have_a_path():
    with serving(echo) as server:
        assert client(server.url + "/api/").get("/info") == {"you": None}
        assert server.requests[0][0] == "/api/info"


def test_a_payload_that_is_no_json_is_refused():
    with serving(echo) as server, pytest.raises(ValueError):
        client(server).post_all("/", [float("nan")])
