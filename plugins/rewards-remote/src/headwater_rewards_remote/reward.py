"""The reward `remote`: asks a server for the scores of one of its rewards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.errors import InputError, did_you_mean
from headwater.http_address import base_url, token_of
from headwater.http_client import JsonClient
from headwater.http_failures import InvalidReplyError, ServiceError
from headwater.protocols import LoadContext
from headwater.types import Batch
from headwater.validators import above, in_range
from headwater_rewards_remote.pictures import Format, encode
from headwater_rewards_remote.protocol import PROTOCOL, prompt_to_json

if TYPE_CHECKING:
    from headwater.composition import Run

_IMAGES = "remote sends prompts and drawn images, and no input images of an editing model"


@attrs.define(eq=False)
class Remote:
    """A reward of a server that `headwater serve-reward` started, or one that speaks as it does."""

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = None

    url: str = attrs.field(validator=base_url)
    """Address of the server, http://127.0.0.1:8100 for instance."""
    reward: str
    """Key of the reward in the server's own run file."""
    token_env: str = ""
    """Environment variable that holds the token; empty where the server asks for none."""
    image_format: Format = "float32"
    """How images travel: exactly, or rounded to 256 levels as numbers or PNG files, a quarter of
    the size or less."""
    per_request: int = attrs.field(default=1, validator=in_range(1, 4096))
    """Images of a request. The server scores waiting requests together, so one is fine."""
    concurrency: int = attrs.field(default=8, validator=in_range(1, 1024))
    """Requests on their way at once."""
    timeout: float = attrs.field(default=60.0, validator=above(0))
    """Seconds of silence before an attempt is given up."""
    deadline: float = attrs.field(default=600.0, validator=above(0))
    """Seconds for the scores of one micro-batch, attempts and pauses included."""
    retries: int = attrs.field(default=3, validator=in_range(0, 100))
    """Further attempts of a request that met 408, 429, 5xx, silence or a broken connection."""
    on_failure: Literal["fail", "nan"] = "fail"
    """A request that failed in the end stops the run, or its images score NaN and
    `[guard] nonfinite_reward` decides."""
    _client: JsonClient = attrs.field(init=False, default=None)
    _identity: str = attrs.field(init=False, default="")
    _failures: int = attrs.field(init=False, default=0)

    def problems(self, run: Run) -> Sequence[str]:
        """Prompts with input images are refused."""
        every = (*run.prompts, *run.evaluation_prompts)
        return [_IMAGES] if any(prompt.images for prompt in every) else []

    def load(self, context: LoadContext) -> None:
        """See that the server is there and has the reward. InputError or ServiceError else."""
        self._client = JsonClient(
            self.url,
            token=token_of(self.token_env),
            timeout=self.timeout,
            deadline=self.deadline,
            retries=self.retries,
            concurrency=self.concurrency,
        )
        found = self._client.get("/rewards")
        rewards = found.get("rewards") if isinstance(found, Mapping) else None
        if not isinstance(rewards, Mapping) or found.get("protocol") != PROTOCOL:
            said = f"expected a server of rewards that speaks protocol {PROTOCOL}"
            raise InvalidReplyError(self._client.url("/rewards"), said)
        if self.reward not in rewards:
            hint = did_you_mean(self.reward, rewards)
            said = f"the server has no reward {self.reward!r}; it serves {', '.join(rewards)}{hint}"
            raise InputError(self.url, [said])
        self._identity = str(rewards[self.reward].get("identity"))

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) on the images' device, in the precision the server's reward gave.

        An image that is not finite scores NaN and is not sent. images: (B, 3, H, W).
        """
        if any(prompt.images for prompt in batch.prompts):
            raise ValueError(_IMAGES)
        images = images.detach()
        sound = torch.isfinite(images).flatten(1).all(dim=1).nonzero().flatten().tolist()
        rows = [sound[i : i + self.per_request] for i in range(0, len(sound), self.per_request)]
        ask = self._client.post_all if self.on_failure == "fail" else self._client.post_each
        answers = ask("/score", self._payloads(images, batch, rows))
        scores = torch.full((len(batch),), torch.nan, dtype=torch.float64)
        exact, failed = False, []
        for some, answer in zip(rows, answers, strict=True):
            try:
                values, double = self._values(answer, len(some))
            except ServiceError as error:
                if self.on_failure == "fail":
                    raise
                failed.append((len(some), error))
                continue
            scores[some] = torch.tensor(values, dtype=torch.float64)
            exact = exact or double
        self._note(failed)
        return (scores if exact else scores.float()).to(images.device)

    def measured(self) -> Mapping[str, float]:
        """`failed_images`: images without a score since the last call, with on_failure = "nan"."""
        count, self._failures = self._failures, 0
        return {"failed_images": float(count)} if self.on_failure == "nan" else {}

    def _payloads(
        self, images: Tensor, batch: Batch, rows: Sequence[Sequence[int]]
    ) -> Iterator[dict[str, Any]]:
        for some in rows:
            yield {
                "rewards": [self.reward],
                "images": encode(images[list(some)], self.image_format),
                "prompts": [prompt_to_json(batch.prompts[i]) for i in some],
            }

    def _values(self, answer: Any, count: int) -> tuple[list[float], bool]:
        """Scores of one answer and whether they are float64; its failure is raised."""
        if isinstance(answer, ServiceError):
            raise answer
        try:
            found = answer["scores"][self.reward]
            values, kind, identity = found["values"], found["dtype"], found["identity"]
        except (KeyError, TypeError):
            raise self._unlike("expected scores of the reward in the answer") from None
        if identity != self._identity:
            raise self._unlike(
                f"the reward {self.reward!r} is another one than when the run began: another "
                f"version or other settings on the server"
            )
        numbers = isinstance(values, list) and all(type(v) in (int, float) for v in values)
        if not numbers or len(values) != count:
            raise self._unlike(f"expected {count} scores, got {str(values)[:80]}")
        return values, kind == "float64"

    def _unlike(self, reason: str) -> InvalidReplyError:
        return InvalidReplyError(self._client.url("/score"), reason)

    def _note(self, failed: Sequence[tuple[int, ServiceError]]) -> None:
        if not failed:
            return
        count = sum(size for size, _ in failed)
        self._failures += count
        warnings.warn(f"{count} images have no score, first: {failed[0][1]}", stacklevel=2)
