"""The algorithms: which steps of a rollout are noisy, and which of them are trained.

In all of them the last step is an Euler step unless `last_step = "stochastic"`: its noise would
reach the image, and with it the reward, without ever being trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import torch
from torch import Generator, Tensor

from headwater.randomness import generator_of
from headwater.types import Rollout
from headwater.validators import above, at_least, in_range
from headwater_grpo import ratios, windows
from headwater_grpo.objective import Grpo, Step

if TYPE_CHECKING:
    from headwater.composition import Run

Last = Literal["euler", "stochastic"]


@attrs.define(eq=False)
class FlowGrpo(Grpo):
    """Flow-GRPO: every step is noisy, the first 99 % are trained."""

    paper: ClassVar[str] = "arXiv 2505.05470"
    title: ClassVar[str] = "Flow-GRPO"

    scale: Literal["group", "global", "none"] = "global"
    """What centred rewards are divided by: the group's deviation, that of all, or nothing."""
    fraction: float = attrs.field(default=0.99, validator=in_range(0, 1))
    """The first int(fraction * N) steps are trained."""
    last_step: Last = "euler"
    """How the last step is taken. "stochastic" is the published code's way."""

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """All, but for an Euler last one."""
        return tuple(range(N - (self.last_step == "euler")))

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """The first fraction; the last step only where it is stochastic."""
        noisy = self.stochastic_steps(step, N)
        return tuple(i for i in windows.first_fraction(N, self.fraction) if i in noisy)


@attrs.define(eq=False)
class GrpoGuard(FlowGrpo):
    """GRPO-Guard: Flow-GRPO with a ratio whose mean and scale do not depend on the step."""

    paper: ClassVar[str] = "arXiv 2510.22319"
    title: ClassVar[str] = "GRPO-Guard"

    clip: float = attrs.field(default=2e-6, validator=above(0))
    """Clip range of the ratio; published values hold for latents of about 65,536 elements."""

    def _ratio(self, step: Step, rollout: Rollout) -> tuple[Tensor, Tensor, float]:
        """r = exp(mean(dm eps)), per sample; the loss is divided by -dt."""
        old = rollout.dynamics.transition(
            step.x, rollout.velocity(step.i), step.i, rollout.sigmas
        ).mean
        noise = ratios.fresh_noise(step.next, old, step.transition.std)
        log_ratio = ratios.guard_log_ratio(step.transition.mean, old, noise)
        gradient = ratios.guard_log_ratio_grad(noise, step.sensitivity)
        return torch.exp(log_ratio), gradient, -1 / step.dt


@attrs.define(eq=False)
class FlowGrpoFast(Grpo):
    """Flow-GRPO-Fast: a short window of noisy steps at a random place, Euler elsewhere."""

    paper: ClassVar[str] = "arXiv 2505.05470"
    title: ClassVar[str] = "Flow-GRPO-Fast"

    clip: float = attrs.field(default=1e-5, validator=above(0))
    """Clip range of the ratio; published values hold for latents of about 65,536 elements."""
    scale: Literal["group", "global", "none"] = "global"
    """What centred rewards are divided by: the group's deviation, that of all, or nothing."""
    window: int = attrs.field(default=2, validator=at_least(1))
    """Steps of the window, all of them trained."""
    window_range: tuple[int, int] = (0, 0)
    """The window lies in [low, high); [0, 0] is the first half of the steps."""
    window_seed: int = 0
    """Seeds the window's place, drawn anew every rollout and equal for all samples."""

    def problems(self, run: Run) -> list[str]:
        """A window that does not fit."""
        found = Grpo.problems(self, run)
        low, high = self._range(run.file.rollout.steps)
        if not 0 <= low <= high - self.window or high > run.file.rollout.steps:
            found.append(
                f"a window of {self.window} steps does not fit into [{low}, {high}) of a rollout "
                f"of {run.file.rollout.steps}"
            )
        return found

    def _range(self, N: int) -> tuple[int, int]:
        return (0, N // 2) if self.window_range == (0, 0) else self.window_range

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """The window, its start uniform over every place it fits."""
        low, high = self._range(N)
        places = high - self.window - low + 1
        if low < 0 or high > N or places < 1:
            raise ValueError(f"a window of {self.window} steps does not fit into [{low}, {high})")
        generator = generator_of(self.window_seed, "window", step)
        start = low + int(torch.randint(places, (), generator=generator))
        return windows.window_at(start, self.window)

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """The window."""
        return self.stochastic_steps(step, N)


@attrs.define(eq=False)
class DanceGrpo(Grpo):
    """DanceGRPO: every step is noisy, a random 60 % are trained, start noise shared by a group.

    The steps are drawn once an optimizer step; DanceGRPO's code draws them for every sample.
    """

    paper: ClassVar[str] = "arXiv 2505.07818"
    title: ClassVar[str] = "DanceGRPO"

    unbiased: bool = True
    """Deviation over G - 1 instead of G."""
    epsilon: float = attrs.field(default=1e-8, validator=at_least(0))
    """Added to the deviation, or its least value; see `floor`."""
    shared_noise: bool = True
    """The samples of a prompt start from one noise."""
    fraction: float = attrs.field(default=0.6, validator=in_range(0, 1))
    """int(fraction * (N - 1)) random steps are trained, the last one never."""
    last_step: Last = "euler"
    """How the last step is taken; it is never trained."""

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """All, but for an Euler last one."""
        return tuple(range(N - (self.last_step == "euler")))

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """A random part of all but the last."""
        order = torch.randperm(N - 1, generator=generator).tolist()
        return windows.permuted_fraction(order, self.fraction)


@attrs.define(eq=False)
class MixGrpo(Grpo):
    """MixGRPO: a sliding window of noisy steps, Euler elsewhere."""

    paper: ClassVar[str] = "arXiv 2507.21802"
    title: ClassVar[str] = "MixGRPO"

    unbiased: bool = True
    """Deviation over G - 1 instead of G."""
    epsilon: float = attrs.field(default=1e-8, validator=at_least(0))
    """Added to the deviation, or its least value; see `floor`."""
    shared_noise: bool = True
    """The samples of a prompt start from one noise."""
    window: int = attrs.field(default=4, validator=at_least(1))
    """w, steps of the window, all of them trained."""
    stride: int = attrs.field(default=1, validator=at_least(1))
    """Steps it moves at a time."""
    updates_each: int = attrs.field(default=25, validator=at_least(1))
    """Optimizer steps at one position."""
    strategy: Literal["progressive", "random", "decay", "exp-decay", "frozen"] = "progressive"
    """How it moves: on and on, to a random place, with fewer updates later, or not at all."""
    least_updates: int = attrs.field(default=1, validator=at_least(1))
    """strategy = "decay": updates at the last position."""
    decay_threshold: float = attrs.field(default=13.0, validator=at_least(0))
    """strategy = "exp-decay": positions up to here keep all their updates."""
    decay_rate: float = attrs.field(default=0.1, validator=at_least(0))
    """strategy = "exp-decay": k of exp(-k (position - threshold))."""
    roll_back: bool = True
    """Begin anew after the last position, else stay there."""
    last_step: Last = "euler"
    """Whether the window may reach the last step."""
    window_seed: int = 0
    """Seeds the places of strategy = "random"."""

    def problems(self, run: Run) -> list[str]:
        """A window longer than the rollout."""
        found = Grpo.problems(self, run)
        total = self._total(run.file.rollout.steps)
        if self.window > total:
            found.append(f"a window of {self.window} steps does not fit into {total}")
        return found

    def _total(self, N: int) -> int:
        return N - (self.last_step == "euler")

    def start(self, update: int, N: int) -> int:
        """First step of the window of an optimizer step."""
        total, size, stride = self._total(N), self.window, self.stride
        if size > total:
            raise ValueError(f"a window of {size} steps does not fit into {total}")
        last = total - size
        if self.strategy == "frozen":
            return 0
        if self.strategy == "random":
            number = update // self.updates_each
            generator = generator_of(self.window_seed, "window", number)
            return int(torch.randint(last + 1, (), generator=generator))
        if self.strategy == "progressive":
            return windows.progressive_start(
                update, size, total, stride, self.updates_each, roll_back=self.roll_back
            )

        def updates_at(place: int) -> int:
            if self.strategy == "decay":
                return windows.linear_decay(place, last, self.updates_each, self.least_updates)
            return windows.exponential_decay(
                place, self.updates_each, self.decay_threshold, self.decay_rate
            )

        return windows.decaying_start(
            update, size, total, stride, updates_at, roll_back=self.roll_back
        )

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """The window."""
        return windows.window_at(self.start(step, N), self.window)

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """The window."""
        return self.stochastic_steps(step, N)
