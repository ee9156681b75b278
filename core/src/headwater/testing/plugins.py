"""Small whole plugins of every kind, so that a run takes milliseconds.

The backbone's latent is (3, 4, 4), its image the sigmoid of it, its text the length of the
prompt. It is float64 throughout, so that exactness can be tested. The fixture `headwater_toys`
offers them by their names below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor, nn

from headwater import hookimpl
from headwater.protocols import LoadContext, Transition
from headwater.randomness import noise
from headwater.testing.objectives import (
    EachStep,
    EveryStep,
    LastStep,
    NoisyStep,
    ToyDirect,
    ToyPolicy,
)
from headwater.types import Batch, Prompt, Request, at_least_float32

__all__ = ["EachStep", "EveryStep", "LastStep", "NoisyStep", "ToyDirect", "ToyPolicy"]

ENTRY_POINTS = {
    "backbone toy": "ToyBackbone",
    "dynamics toy-noise": "ToyNoise",
    "reward toy-brightness": "Brightness",
    "reward toy-count": "Count",
    "reward toy-nan": "SometimesNaN",
    "algorithm toy-direct": "ToyDirect",
    "algorithm toy-policy": "ToyPolicy",
    "estimator toy-last": "LastStep",
    "estimator toy-bptt": "EveryStep",
    "estimator toy-noisy": "NoisyStep",
    "estimator toy-each": "EachStep",
    "observer toy-recorder": "Recorder",
    "observer toy-raiser": "Raiser",
}


@attrs.frozen(eq=False)
class ToyConditioning:
    """One number a prompt."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def index(self, indices: Sequence[int]) -> ToyConditioning:
        """Take the rows `indices`, repeats allowed."""
        return ToyConditioning(self.rows[list(indices)])


class ToyNetwork(nn.Module):
    """tanh of a linear map of state and text, times 1 + sigma."""

    def __init__(self, seed: int, *, dead: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Parameter(torch.randn(48, 48, generator=generator, dtype=torch.float64) / 7)
        self.text = nn.Parameter(torch.randn(48, generator=generator, dtype=torch.float64))
        if dead:
            self.unused = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor, sigma: Tensor, text: Tensor) -> Tensor:
        """x (B, *latent), sigma (B,), text (B,)."""
        flat = x.flatten(1).double()
        hidden = torch.tanh(flat @ self.inner + text[:, None] * self.text)
        return (hidden * (1 + sigma.double())[:, None]).view_as(x)


@attrs.define(eq=False)
class ToyBackbone:
    """A network of 2,352 weights on images of 4 x 4."""

    guidance_kind: ClassVar[Literal["none"]] = "none"
    dead: bool = False
    """Whether it has a weight that its output does not depend on."""
    network: nn.Module = attrs.field(init=False, default=None)
    _before: dict[str, Tensor] = attrs.field(init=False, factory=dict)

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """One each."""
        return 1, 1

    def load(self, context: LoadContext) -> None:
        """Draw the weights."""
        self.network = ToyNetwork(context.seed, dead=self.dead)
        self._before = {n: p.detach().clone() for n, p in self.network.named_parameters()}

    def encode(self, prompts: Sequence[Prompt]) -> ToyConditioning:
        """The length of each prompt."""
        return ToyConditioning(torch.tensor([len(p.text) / 10 for p in prompts]).double())

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: ToyConditioning) -> Tensor:
        """(B, 3, 4, 4)"""
        out: Tensor = self.network(x, sigma, conditioning.rows)
        return out

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, 4, 4)."""
        return torch.sigmoid(latents)

    def shape(self, request: Request) -> tuple[int, ...]:
        """(3, 4, 4)"""
        return (3, 4, 4)

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """An even grid."""
        return torch.linspace(1, 0, steps + 1)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """Each sample from its own seed."""
        return noise(shape, seeds, torch.float64)

    def trainable(self) -> dict[str, nn.Parameter]:
        """All weights."""
        return dict(self.network.named_parameters())

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the weights are those that were drawn."""
        from headwater.optimization import swapped

        with swapped(self.trainable(), self._before):
            yield

    def export(self, path: Path) -> None:
        """Write `weights.safetensors`."""
        from safetensors.torch import save_file

        tensors = {name: p.detach() for name, p in self.trainable().items()}
        save_file(tensors, path / "weights.safetensors")

    def describe(self) -> Mapping[str, Any]:
        """The number of weights."""
        return {"parameters": 48 * 48 + 48}


@attrs.frozen(eq=False)
class ToyNoise:
    """An Euler step and noise of a fixed size after it, but for the last step."""

    stochastic: ClassVar[bool] = True
    size: float = 0.2
    """Standard deviation of a step of size 1."""

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean x - h v; std size sqrt(h)."""
        h = float(sigmas[i]) - float(sigmas[i + 1])
        last = float(sigmas[i + 1]) == 0
        mean = at_least_float32(x) - h * at_least_float32(v)
        return Transition(mean=mean, std=0.0 if last else self.size * math.sqrt(h))

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """(B,) ValueError for a deterministic step."""
        if transition.std == 0:
            raise ValueError("the last step is deterministic and has no log-probability")
        z = (next - transition.mean) / transition.std
        constant = math.log(transition.std) + 0.5 * math.log(2 * math.pi)
        return (-0.5 * z.square() - constant).flatten(1).mean(dim=1)

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """-h (y - m) / (D std^2). ValueError for a deterministic step."""
        if transition.std == 0:
            raise ValueError("the last step is deterministic and has no log-probability")
        away = (next - transition.mean) / (x[0].numel() * transition.std**2)
        return self.sensitivity(i, sigmas) * away

    def sensitivity(self, i: int, sigmas: Tensor) -> float:
        """-h"""
        return float(sigmas[i + 1]) - float(sigmas[i])


@attrs.frozen(eq=False)
class Brightness:
    """Mean of the image."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = 1.0

    @hookimpl
    def score(self, images: Tensor) -> Tensor:
        """(B,)"""
        return images.flatten(1).mean(dim=1)


@attrs.frozen(eq=False)
class Count:
    """Bright pixels; not differentiable."""

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = None

    @hookimpl
    def score(self, images: Tensor) -> Tensor:
        """(B,)"""
        return (images > 0.5).double().flatten(1).mean(dim=1)


@attrs.frozen(eq=False)
class SometimesNaN:
    """NaN where the prompt says so; otherwise the brightness."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = 1.0
    kind: Literal["score", "gradient"] = "score"
    """What is not a number: the score, or only its gradient."""

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,)"""
        mean = images.flatten(1).mean(dim=1)
        bad = torch.tensor(["nan" in p.text for p in batch.prompts])
        if self.kind == "score":
            factor = torch.ones_like(mean.detach())
            factor[bad] = float("nan")
            return mean * factor
        root = torch.sqrt((mean - mean.detach()).abs())  # its derivative at 0 is not finite
        return torch.where(bad, mean + root, mean)


@attrs.define(eq=False)
class Recorder:
    """Writes what it is told to `recorded.txt` in the run folder."""

    _file: Path | None = attrs.field(init=False, default=None)

    def _write(self, text: str) -> None:
        assert self._file is not None, "an observer is told of the start before anything else"
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    @hookimpl
    def start(self, folder: Path) -> None:
        """Remember the folder."""
        self._file = folder / "recorded.txt"
        self._write("start")

    @hookimpl
    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line a step."""
        self._write(f"after_step {step} {len(metrics)}")

    @hookimpl
    def after_evaluation(self, step: int) -> None:
        """One line an evaluation."""
        self._write(f"after_evaluation {step}")

    @hookimpl
    def finish(self, step: int, reason: str) -> None:
        """The last line."""
        self._write(f"finish {step} {reason}")


@attrs.frozen(eq=False)
class Raiser:
    """Raises whenever it is told anything but the start."""

    @hookimpl
    def after_step(self, step: int) -> None:
        """Raises."""
        raise RuntimeError(f"this observer fails at step {step}")

    @hookimpl
    def after_evaluation(self, step: int) -> None:
        """Raises."""
        raise RuntimeError(f"this observer fails at the evaluation after step {step}")

    @hookimpl
    def finish(self) -> None:
        """Raises."""
        raise RuntimeError("this observer fails at the end")
