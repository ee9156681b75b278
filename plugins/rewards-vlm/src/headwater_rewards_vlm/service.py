"""Rewards that a server gives over HTTP: one request an image, and a policy for its failures.

A failure is never a score: it stops the run with its own kind of error, or it is NaN, which
`[guard] nonfinite_reward` then stops or drops with its group.
"""

from __future__ import annotations

import base64
import io
import math
import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from PIL import Image
from torch import Tensor

from headwater import hookimpl
from headwater.errors import InputError, PluginError
from headwater.http_address import base_url, token_of
from headwater.http_client import JsonClient
from headwater.http_failures import InvalidReplyError, ServiceError
from headwater.protocols import LoadContext
from headwater.types import Batch, Prompt
from headwater.validators import above, at_least, in_range
from headwater_rewards_vlm.preprocessing import checked, picture
from headwater_rewards_vlm.weights import warn_once

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.define(eq=False)
class HttpReward:
    """Where the server is, how long it may take, and what a failure means."""

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = None
    path: ClassVar[str]

    server: str = attrs.field(validator=base_url)
    """Address, `http://127.0.0.1:8000/v1` for instance."""
    token_variable: str = ""
    """Environment variable that holds the token; empty for none. Run files hold no tokens."""
    on_failure: Literal["fail", "nan"] = "fail"
    """A failed request stops the run, or its score is NaN and [guard] nonfinite_reward decides."""
    patience: int = attrs.field(default=3, validator=at_least(1))
    """With "nan": calls in a row without one score, before the run is stopped all the same."""
    timeout: float = attrs.field(default=60.0, validator=above(0))
    """Seconds to connect, and seconds of silence before an attempt is given up."""
    deadline: float = attrs.field(default=300.0, validator=above(0))
    """Seconds for all requests of one micro-batch, with their attempts and pauses."""
    retries: int = attrs.field(default=3, validator=in_range(0, 100))
    """Further attempts after status 408, 429 or 5xx, a timeout or a broken connection."""
    concurrency: int = attrs.field(default=8, validator=in_range(1, 1024))
    """Requests in flight at once."""
    picture: Literal["png", "jpeg"] = "png"
    """How an image is sent. JPEG has quality 95."""
    picture_size: int = attrs.field(default=0, validator=at_least(0))
    """Pixels on a side that an image is resized to, as a square; 0 sends it as it is."""

    _client: JsonClient = attrs.field(init=False, default=None)
    _without: int = attrs.field(init=False, default=0)
    _failed: int = attrs.field(init=False, default=0)
    _warned: set[str] = attrs.field(init=False, factory=set)

    @abstractmethod
    def payload(self, data: str, prompt: Prompt) -> Any:
        """What is posted for one image. data: base64."""

    @abstractmethod
    def read(self, answer: Any) -> float:
        """The score in an answer. ValueError says why there is none."""

    def problems(self, run: Run) -> list[str]:
        """A token that is not there."""
        variable = self.token_variable
        if variable and not os.environ.get(variable):
            return [f"token_variable: the environment variable {variable} is not set"]
        return []

    def load(self, context: LoadContext) -> None:
        """Make the client; nothing is sent."""
        try:
            token = token_of(self.token_variable)
        except InputError as error:
            raise PluginError(str(error)) from None
        try:
            self._client = JsonClient(
                self.server,
                token,
                timeout=self.timeout,
                deadline=self.deadline,
                retries=self.retries,
                concurrency=self.concurrency,
            )
        except ValueError as error:
            raise PluginError(f"token_variable {self.token_variable}: {error}") from None

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) scores of images (B, 3, H, W)."""
        return self.rate(images, batch.prompts)

    def rate(self, images: Tensor, prompts: tuple[Prompt, ...]) -> Tensor:
        """(B,) float32 scores; a `ServiceError` or NaN where there is none, by `on_failure`."""
        if self._client is None:
            raise ValueError(f"{type(self).__name__} is not loaded; call load first")
        if len(prompts) != len(images):
            raise ValueError(f"expected a prompt an image, got {len(prompts)} for {len(images)}")
        device, images = images.device, checked(images.detach()).cpu()
        payloads = (
            self.payload(encoded(image, self.picture, self.picture_size), prompt)
            for image, prompt in zip(images, prompts, strict=True)
        )
        post = self._client.post_all if self.on_failure == "fail" else self._client.post_each
        answers = post(self.path, payloads)
        found = [self._score(a, p) for a, p in zip(answers, prompts, strict=True)]
        return torch.tensor(self._by_policy(found), dtype=torch.float32, device=device)

    def measured(self) -> Mapping[str, float]:
        """`failed_images`: images without a score since the last call, with "nan"."""
        count, self._failed = self._failed, 0
        return {"failed_images": float(count)} if self.on_failure == "nan" else {}

    def _score(self, answer: Any, prompt: Prompt) -> float | ServiceError:
        """A finite number, or why there is none."""
        if isinstance(answer, ServiceError):
            return answer
        try:
            value = self.read(answer)
            if not math.isfinite(value):
                raise ValueError(f"the score is {value}")
            return value
        except ValueError as error:
            reason = f"{error}; for the prompt {prompt.text[:80]!r}"
            return InvalidReplyError(self._client.url(self.path), reason, status=200)

    def _by_policy(self, found: list[float | ServiceError]) -> list[float]:
        """NaN for failures, or the first of them raised."""
        failures = [value for value in found if isinstance(value, ServiceError)]
        if not failures:
            self._without = 0
            return [float(value) for value in found if not isinstance(value, ServiceError)]
        self._without = self._without + 1 if len(failures) == len(found) else 0
        if self.on_failure == "fail" or self._without >= self.patience:
            raise failures[0]
        self._failed += len(failures)
        for failure in failures:
            kind = type(failure).__name__
            warn_once(self._warned, kind, f"no score from a server ({kind}, now NaN): {failure}")
        return [math.nan if isinstance(value, ServiceError) else value for value in found]


def encoded(image: Tensor, kind: Literal["png", "jpeg"], size: int) -> str:
    """Base64 of (3, H, W) in [0, 1] as an 8-bit picture; resized to size x size where not 0."""
    made = picture(image)
    if size:
        made = made.resize((size, size), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    made.save(file, format=kind.upper(), **({"quality": 95} if kind == "jpeg" else {}))
    return base64.b64encode(file.getvalue()).decode("ascii")


def field(answer: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of an answer, of this type. ValueError says what came instead."""
    if not isinstance(answer, Mapping) or name not in answer:
        got = f"keys {sorted(map(str, answer))[:8]}" if isinstance(answer, Mapping) else "no object"
        raise ValueError(f"expected an object with {name!r}, got {got}")
    value = answer[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{name!r} is {str(value)[:80]!r}, of the wrong type")
    return value
