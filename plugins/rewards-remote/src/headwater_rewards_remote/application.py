"""The web application: who may ask, how much, and what is answered."""

from __future__ import annotations

import asyncio
import hmac
import logging
import traceback
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import anyio
import anyio.to_thread
import attrs
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.errors import did_you_mean
from headwater_rewards_remote.judge import Judge, NonfiniteError
from headwater_rewards_remote.pictures import FORMATS, SizeError, levels
from headwater_rewards_remote.protocol import PROTOCOL, ScoreRequest, identity, request_of

LOG = logging.getLogger("headwater.serve")


@attrs.frozen(eq=False)
class Limits:
    """What one request may cost."""

    body: int = 64 * 2**20
    """Bytes of a body."""
    pixels: int = 2**25
    """B H W of its images."""
    seconds: float = 60.0
    """In which its body must have come."""
    requests: int = 64
    """Requests that are answered or wait at once."""


class Refusal(Exception):
    """An answer other than scores: a status, a type that programs read, and one sentence."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.status, self.kind, self.message, self.more = status, kind, message, more
        super().__init__(message)

    def response(self) -> Response:
        """As JSON."""
        error = {"type": self.kind, "message": self.message, **self.more}
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse({"error": error}, self.status, headers)


@attrs.frozen(eq=False)
class Service:
    """The rewards of a server and how they are asked."""

    judges: Mapping[str, Judge]
    limits: Limits = attrs.field(factory=Limits)
    eight_bit: bool = False
    """Whether images are rounded to 256 levels before they are scored, whatever they came as."""
    _threads: anyio.CapacityLimiter = attrs.field(init=False)

    @_threads.default
    def _one_a_request(self) -> anyio.CapacityLimiter:
        # Threads wait for a reward's lock; fewer of them would let one reward starve another.
        return anyio.CapacityLimiter(self.limits.requests)

    async def health(self, _: Request) -> Response:
        """GET /health."""
        return JSONResponse(
            {
                "status": "ok",
                "server": "headwater-rewards-remote",
                "version": metadata.version("headwater-rewards-remote"),
                "headwater": metadata.version("headwater"),
                "protocol": PROTOCOL,
                "eight_bit": self.eight_bit,
                "rewards": list(self.judges),
            }
        )

    async def rewards(self, _: Request) -> Response:
        """GET /rewards."""
        return JSONResponse(
            {
                "protocol": PROTOCOL,
                "eight_bit": self.eight_bit,
                "formats": list(FORMATS),
                "limits": {"body_bytes": self.limits.body, "pixels": self.limits.pixels},
                "rewards": {key: judge.facts() for key, judge in self.judges.items()},
            }
        )

    async def score(self, request: Request) -> Response:
        """POST /score."""
        body = await self._body(request)
        answer = await anyio.to_thread.run_sync(
            self.answer, body, limiter=self._threads, abandon_on_cancel=True
        )
        return JSONResponse(answer)

    def answer(self, body: bytes) -> dict[str, Any]:
        """Scores of one request, in a thread of its own. Raises Refusal."""
        try:
            asked = request_of(body, self.limits.pixels)
        except SizeError as error:
            raise Refusal(413, "too-large", str(error)) from None
        except ValueError as error:
            raise Refusal(422, "invalid-request", str(error)) from None
        for key in asked.rewards:
            if key not in self.judges:
                known = ", ".join(self.judges)
                hint = did_you_mean(key, self.judges)
                raise Refusal(404, "unknown-reward", f"no reward {key!r}; served: {known}{hint}")
        images = levels(asked.images).float() / 255 if self.eight_bit else asked.images
        return {
            "scores": {
                key: self._scores(key, attrs.evolve(asked, images=images)) for key in asked.rewards
            }
        }

    def _scores(self, key: str, asked: ScoreRequest) -> dict[str, Any]:
        judge = self.judges[key]
        try:
            scores = judge.score(asked.images, asked.prompts)
        except NonfiniteError as error:
            samples = list(error.samples)
            raise Refusal(422, "nonfinite-score", str(error), samples=samples) from None
        except ValueError as error:
            raise Refusal(422, "refused-by-reward", f"{key}: {error}") from None
        except Exception as error:  # noqa: BLE001  whatever a plugin raises is answered
            LOG.error("reward %r failed:\n%s", key, traceback.format_exc())
            said = f"the reward {key!r} failed: {type(error).__name__}: {error}"
            raise Refusal(500, "reward-failed", said) from None
        return {
            "values": scores.double().tolist(),
            "dtype": "float64" if scores.dtype == torch.float64 else "float32",
            "identity": identity(judge.named),
        }

    async def _body(self, request: Request) -> bytes:
        """The body of a request. Of one that is too long the rest is read and thrown away:
        a client that is cut off while it sends would not read why.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        stated = request.headers.get("content-length", "")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.limits.body:
                        parts.append(chunk)
                    else:
                        parts.clear()
        except TimeoutError:
            slow = f"the body of {stated or 'a request'} did not come in {self.limits.seconds:g} s"
            raise Refusal(408, "slow-body", slow) from None
        if kind != "application/json":
            raise Refusal(415, "not-json", "expected Content-Type: application/json, and JSON only")
        if size > self.limits.body:
            most = self.limits.body
            said = f"the body has {size} bytes, more than the {most} that this server takes"
            raise Refusal(413, "too-large", said)
        return b"".join(parts)


@attrs.frozen(eq=False)
class TokenGuard:
    """Lets a request through that carries the token; every path needs it."""

    app: ASGIApp
    token: str = attrs.field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan" or self._holds(scope):
            await self.app(scope, receive, send)
            return
        refusal = Refusal(401, "unauthorized", "this server wants a token: Authorization: Bearer")
        await refusal.response()(scope, receive, send)

    def _holds(self, scope: Scope) -> bool:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        kind, _, value = given.partition(b" ")
        same = hmac.compare_digest(value.strip(), self.token.encode())
        return kind.lower() == b"bearer" and same


def application(service: Service, token: str = "") -> ASGIApp:
    """The application of a service; with a token, every request must carry it."""
    app = Starlette(
        routes=[
            Route("/health", service.health, methods=["GET"]),
            Route("/rewards", service.rewards, methods=["GET"]),
            Route("/score", service.score, methods=["POST"]),
        ],
        exception_handlers={
            Refusal: _refused,
            HTTPException: _no_such_path,
            ClientDisconnect: _gone,
        },
    )
    return TokenGuard(app, token) if token else app


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: expected GET /health, GET /rewards or POST /score"
    return Refusal(error.status_code, "no-such-path", said).response()


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
