"""How a request over HTTP can fail, one class a kind, and how an answer is read."""

from __future__ import annotations

import json
from typing import Any

from headwater.errors import HeadwaterError


class ServiceError(HeadwaterError):
    """A server did not give what was asked for; exit code 1. One subclass a kind of failure."""

    def __init__(
        self, url: str, reason: str, *, status: int | None = None, attempts: int = 1
    ) -> None:
        self.url, self.reason, self.status, self.attempts = url, reason, status, attempts
        times = f"after {attempts} attempt{'s' if attempts != 1 else ''}"
        super().__init__(f"{url}: {reason} ({times})")


class UnreachableError(ServiceError):
    """No connection, or one that broke."""


class ReplyTimeoutError(ServiceError):
    """Connected, and silent for `timeout` seconds."""


class DeadlineError(ServiceError):
    """The `deadline` of a whole call passed before an answer came."""


class UnavailableError(ServiceError):
    """Status 408, 429 or 5xx at every attempt."""

    pause = 0.0
    """Seconds the server asked to wait."""


class RejectedError(ServiceError):
    """Any other status that is no success; it is not tried again."""


class InvalidReplyError(ServiceError):
    """An answer that is no JSON, or not what the caller asked for."""


class ReplySizeError(ServiceError):
    """An answer longer than `reply_limit` bytes."""


def parse(body: bytes) -> Any:
    """Strict JSON: no NaN, no infinity, and no number that would become one. ValueError else."""
    if not body.strip():
        raise ValueError("the answer is empty")
    try:
        return json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is no JSON: {error}") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _finite(word: str) -> float:
    value = float(word)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{word} is no finite number")
    return value


def excerpt(body: bytes) -> str:
    """The beginning of an answer, fit for a message; nothing where it is empty."""
    text = "".join(c if c.isprintable() else " " for c in body[:800].decode("utf-8", "replace"))
    text = " ".join(text.split())
    return f"; it said: {text[:200]!r}" if text else ""
