"""JSON over HTTP for rewards that live elsewhere: bounded in time, in size and in number.

Failures are the classes of `headwater.http_failures`. Only the standard library and only JSON. No
redirect is followed and no proxy is asked, so that a token reaches the host it was given for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs

from headwater.http_address import base_url, token
from headwater.http_failures import (
    DeadlineError,
    InvalidReplyError,
    RejectedError,
    ReplySizeError,
    ReplyTimeoutError,
    ServiceError,
    UnavailableError,
    UnreachableError,
    excerpt,
    parse,
)
from headwater.validators import above, at_least, in_range

Failure = TypeVar("Failure", bound=ServiceError)

RETRIED = (408, 429)
"""Statuses worth another attempt, beside 500 and above."""
LONGEST_PAUSE = 8.0
"""Seconds between two attempts, at most."""


@attrs.frozen(eq=False)
class JsonClient:
    """Posts JSON to one server from a few threads and gives the answers in order."""

    base_url: str = attrs.field(validator=base_url)
    """Address; paths are appended to it."""
    token: str = attrs.field(default="", repr=False, validator=token)
    """Sent as `Authorization: Bearer`; empty for none."""
    timeout: float = attrs.field(default=60.0, validator=above(0))
    """Seconds to connect, and seconds of silence before an attempt is given up."""
    deadline: float = attrs.field(default=300.0, validator=above(0))
    """Seconds for one whole call: its queue, attempts and pauses."""
    retries: int = attrs.field(default=3, validator=in_range(0, 100))
    """Further attempts after 408, 429, 5xx, a timeout or a broken connection."""
    concurrency: int = attrs.field(default=8, validator=in_range(1, 1024))
    """Requests of one call in flight at once; no more payloads than these are held in memory."""
    backoff: float = attrs.field(default=0.5, validator=at_least(0))
    """Seconds before the second attempt; doubled at each further one."""
    reply_limit: int = attrs.field(default=16 * 2**20, validator=at_least(1))
    """Bytes of one answer, at most."""

    def get(self, path: str) -> Any:
        """One answer, without a payload."""
        (answer,) = _Call(self, "GET", path).answers([None])
        if isinstance(answer, ServiceError):
            raise answer
        return answer

    def post(self, path: str, payload: Any) -> Any:
        """One answer."""
        (answer,) = self.post_all(path, [payload])
        return answer

    def post_all(self, path: str, payloads: Iterable[Any]) -> list[Any]:
        """One answer a payload, in their order. The first failure ends the call and is raised.

        payloads: read one by one as requests become free. TypeError or ValueError for one that
        JSON cannot say.
        """
        answers = _Call(self, "POST", path, fail_fast=True).answers(payloads)
        for answer in answers:
            if isinstance(answer, ServiceError):
                raise answer
        return answers

    def post_each(self, path: str, payloads: Iterable[Any]) -> list[Any]:
        """As `post_all`, with the `ServiceError` of a failed request in its answer's place."""
        return _Call(self, "POST", path).answers(payloads)

    def url(self, path: str) -> str:
        """Where a path is asked for."""
        return self.base_url.rstrip("/") + "/" + path.lstrip("/")


@attrs.define(eq=False)
class _Job:
    """One request and how it stands."""

    index: int
    body: bytes | None
    attempts: int = 0
    last: str = ""
    """What the last attempt ended in."""
    socket: socket.socket | None = None

    def abort(self) -> None:
        """Wake a thread that waits on this job's socket."""
        if self.socket is not None:
            with contextlib.suppress(OSError):  # closed already
                self.socket.shutdown(socket.SHUT_RDWR)


@attrs.define(eq=False)
class _Call:
    """One call of a client: a bounded set of jobs with one deadline."""

    client: JsonClient
    method: str
    path: str
    fail_fast: bool = False
    ends: float = attrs.field(init=False)
    over: Event = attrs.field(init=False, factory=Event)

    def __attrs_post_init__(self) -> None:
        self.ends = time.monotonic() + self.client.deadline

    @property
    def url(self) -> str:
        return self.client.url(self.path)

    @property
    def left(self) -> float:
        """Seconds to the deadline; 0 once the call is over."""
        return 0.0 if self.over.is_set() else max(0.0, self.ends - time.monotonic())

    def answers(self, payloads: Iterable[Any]) -> list[Any]:
        """Answers and failures in the order of the payloads."""
        jobs = (_Job(i, _encoded(self.method, p)) for i, p in enumerate(payloads))
        found: dict[int, Any] = {}
        running: dict[Future[Any], _Job] = {}
        pool = ThreadPoolExecutor(self.client.concurrency, "headwater-http")
        try:
            self._fill(pool, jobs, running)
            while running:
                done, _ = wait(running, timeout=self.left, return_when=FIRST_COMPLETED)
                if not done:
                    break
                for future in done:
                    found[running.pop(future).index] = future.result()
                if self.fail_fast and any(isinstance(a, ServiceError) for a in found.values()):
                    return [found[i] for i in sorted(found)]
                self._fill(pool, jobs, running)
            for job in (*running.values(), *jobs):
                found[job.index] = self._late(job)
            return [found[i] for i in range(len(found))]
        finally:
            self.over.set()
            for job in running.values():
                job.abort()
            pool.shutdown(wait=False, cancel_futures=True)

    def _fill(
        self, pool: ThreadPoolExecutor, jobs: Iterator[_Job], running: dict[Future[Any], _Job]
    ) -> None:
        """Start jobs until as many run as may, or until the deadline."""
        while len(running) < self.client.concurrency and self.left:
            job = next(jobs, None)
            if job is None:
                return
            running[pool.submit(self._run, job)] = job

    def _run(self, job: _Job) -> Any:
        """Attempts until an answer, a failure that would repeat itself, or the last retry."""
        pause = self.client.backoff
        while True:
            job.attempts += 1
            try:
                return self._attempt(job)
            except (UnreachableError, ReplyTimeoutError, UnavailableError) as error:
                job.last = error.reason
                if job.attempts > self.client.retries:
                    return error
                wanted = min(
                    max(pause, error.pause if isinstance(error, UnavailableError) else 0.0),
                    LONGEST_PAUSE,
                )
                if wanted >= self.left or self.over.wait(wanted):
                    return self._late(job)
                pause *= 2
            except ServiceError as error:
                return error

    def _late(self, job: _Job) -> DeadlineError:
        reason = f"no answer within the deadline of {self.client.deadline:g} s"
        reason += f"; the last attempt: {job.last}" if job.last else ""
        return DeadlineError(self.url, reason, attempts=job.attempts)

    def _attempt(self, job: _Job) -> Any:
        """One request. Raises the kind of failure it met."""
        try:
            response, body = self._exchange(job)
        except TimeoutError:
            waited = f"silent for {self.client.timeout:g} s"
            if job.socket is None:
                raise self._failed(UnreachableError, f"no connection, {waited}", job) from None
            raise self._failed(ReplyTimeoutError, waited, job) from None
        except (OSError, http.client.IncompleteRead) as error:
            reason = f"no connection, or it broke: {type(error).__name__}: {error}"
            raise self._failed(UnreachableError, reason, job) from None
        except http.client.HTTPException as error:
            reason = f"the answer is no HTTP: {type(error).__name__}"
            raise self._failed(InvalidReplyError, reason, job) from None
        finally:
            job.socket = None
        return self._understood(job, response, body)

    def _understood(self, job: _Job, response: http.client.HTTPResponse, body: bytes) -> Any:
        """The JSON of an answer, or the failure that its status or body is."""
        status, limit = response.status, self.client.reply_limit
        if status in RETRIED or status >= 500:
            error = self._failed(UnavailableError, f"status {status}{excerpt(body)}", job, status)
            error.pause = _seconds(response.getheader("Retry-After"))
            raise error
        if not 200 <= status < 300:
            hint = "; is the token right?" if status in (401, 403) else ""
            reason = f"status {status}{excerpt(body)}{hint}"
            raise self._failed(RejectedError, reason, job, status)
        if len(body) > limit:
            reason = f"the answer is longer than {limit} bytes"
            raise self._failed(ReplySizeError, reason, job, status)
        try:
            return parse(body)
        except ValueError as error:
            reason = f"{error}{excerpt(body)}"
            raise self._failed(InvalidReplyError, reason, job, status) from None

    def _failed(
        self, kind: type[Failure], reason: str, job: _Job, status: int | None = None
    ) -> Failure:
        return kind(self.url, reason, status=status, attempts=job.attempts)

    def _exchange(self, job: _Job) -> tuple[http.client.HTTPResponse, bytes]:
        """Send and read, on a connection of its own."""
        client, parts = self.client, urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        seconds = max(min(client.timeout, self.left), 0.001)
        connection = kind(str(parts.hostname), parts.port, timeout=seconds)
        headers = {"Accept": "application/json", "Connection": "close"}
        if job.body is not None:
            headers["Content-Type"] = "application/json"
        if client.token:
            headers["Authorization"] = f"Bearer {client.token}"
        try:
            connection.connect()
            job.socket = connection.sock
            if self.over.is_set():
                raise ConnectionAbortedError("the call is over")
            connection.sock.settimeout(client.timeout)
            connection.request(self.method, parts.path or "/", job.body, headers)
            response = connection.getresponse()
            body = response.read(client.reply_limit + 1)
            short = (response.length or 0) if len(body) <= client.reply_limit else 0
            if short > 0:
                raise http.client.IncompleteRead(body, short)
            return response, body
        finally:
            connection.close()


def _encoded(method: str, payload: Any) -> bytes | None:
    """The body of a request; ValueError where it holds a number that is not finite."""
    return None if method == "GET" else json.dumps(payload, allow_nan=False).encode()


def _seconds(header: str | None) -> float:
    """A Retry-After in seconds; a date is not read."""
    return float(header) if header and header.isascii() and header.isdigit() else 0.0
