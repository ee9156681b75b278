"""One reward behind a lock: requests that wait for it are scored together, in their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater.composition import Named
from headwater.errors import HeadwaterError
from headwater.rewards import Scorer
from headwater.types import Batch, Prompt


class NonfiniteError(HeadwaterError):
    """A reward gave a score that is NaN or infinite; it is not sent."""

    def __init__(self, key: str, samples: Sequence[int], count: int) -> None:
        self.samples = tuple(samples)
        super().__init__(
            f"the reward {key!r} is not finite for {len(samples)} of {count} images, first for "
            f"image {samples[0]}"
        )


@attrs.define(eq=False)
class _Job:
    """The images of one request, and in the end their scores or what went wrong."""

    images: Tensor
    prompts: tuple[Prompt, ...]
    scores: Tensor | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.scores is not None or self.error is not None


@attrs.define(eq=False)
class Judge:
    """A loaded reward that any thread may ask. Models are not thread-safe: one call at a time.

    Whoever holds the lock scores what has been waiting longest, other threads' requests among it,
    until its own is done. Neighbours in the queue with images of one size share a call.
    """

    key: str
    named: Named
    scorer: Scorer
    device: str
    most: int
    """Images of one call."""
    lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    waiting: deque[_Job] = attrs.field(init=False, factory=deque)

    def score(self, images: Tensor, prompts: tuple[Prompt, ...]) -> Tensor:
        """(B,) finite scores on the CPU, of images (B, 3, H, W) on the CPU.

        Raises what the reward raises, and NonfiniteError.
        """
        job = _Job(images, prompts)
        self.waiting.append(job)
        with self.lock:
            while not job.done:
                self._work(self._next())
        if job.error is not None:
            raise job.error
        assert job.scores is not None
        bad = (~torch.isfinite(job.scores)).nonzero().flatten().tolist()
        if bad:
            raise NonfiniteError(self.key, bad, len(job.scores))
        return job.scores

    def _next(self) -> list[_Job]:
        """The oldest job, and those behind it that fit into the same call."""
        jobs = [self.waiting.popleft()]
        total = len(jobs[0].images)
        while self.waiting:
            other = self.waiting[0]
            total += len(other.images)
            if total > self.most or other.images.shape[1:] != jobs[0].images.shape[1:]:
                break
            jobs.append(self.waiting.popleft())
        return jobs

    def _work(self, jobs: list[_Job]) -> None:
        """Score jobs together; where that fails each by itself, so that none spoils another."""
        try:
            images = torch.cat([job.images for job in jobs])
            scores = self._call(images, tuple(p for job in jobs for p in job.prompts))
        except Exception as error:  # noqa: BLE001  it is the request's answer
            if len(jobs) == 1:
                jobs[0].error = error
                return
            for job in jobs:
                self._work([job])
            return
        sizes = [len(job.images) for job in jobs]
        for job, part in zip(jobs, torch.split(scores, sizes), strict=True):
            job.scores = part

    @torch.no_grad()
    def _call(self, images: Tensor, prompts: tuple[Prompt, ...]) -> Tensor:
        """At most `most` images at a time."""
        height, width = images.shape[-2:]
        parts = []
        for start in range(0, len(images), self.most):
            some = prompts[start : start + self.most]
            numbers = tuple(range(len(some)))
            batch = Batch(some, None, numbers, numbers, height, width, 1)
            given = images[start : start + self.most].to(self.device)
            parts.append(self.scorer(given, batch).detach().cpu())
        return torch.cat(parts)

    def facts(self) -> dict[str, Any]:
        """What the server says of it."""
        from headwater.settings import unstructure
        from headwater_rewards_remote.protocol import identity

        entry, plugin = self.named.entry, self.named.plugin
        return {
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
            "identity": identity(self.named),
            "differentiable": plugin.differentiable,
            "needs_text": plugin.needs_text,
            "settings": unstructure(plugin),
        }
