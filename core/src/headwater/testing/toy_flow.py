"""A flow of a few hundred parameters: strongly nonlinear, smooth, in float64.

Everything a gradient can go wrong on is in it: the velocity depends on the state, on sigma and
on what belongs to each sample; the grid is uneven; guidance takes two evaluations; the decoder
and the rewards are curved. Nothing of a sample depends on another sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor, nn

from headwater.dynamics import Ode
from headwater.randomness import noise
from headwater.rollout import RolloutLoop
from headwater.types import Batch, Prompt, Request, Rollout

LATENT = (2, 3)
WIDTH = 5
D = 6


@attrs.frozen(eq=False)
class Rows:
    """Conditioning: one row a sample, and one for the evaluation without prompt."""

    positive: Tensor
    negative: Tensor

    def __len__(self) -> int:
        return len(self.positive)

    def index(self, indices: Sequence[int]) -> Rows:
        rows = list(indices)
        return Rows(self.positive[rows], self.negative[rows])


class Network(nn.Module):
    """v = B tanh(A x + a(sigma) + C c) + E x, no two samples mixed."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def parameter(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(shape, generator=generator).to(dtype))

        self.A = parameter(WIDTH, D, scale=0.7)
        self.time = parameter(3, WIDTH, scale=0.9)
        self.C = parameter(WIDTH, 4, scale=0.6)
        self.B = parameter(D, WIDTH, scale=0.8)
        self.E = parameter(D, D, scale=0.3)

    def forward(self, x: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        sigma = sigma.to(x.dtype)
        time = torch.stack([sigma, sigma.sin() * 2, (3 * sigma).cos()], dim=1)  # (B, 3)
        hidden = torch.tanh(x @ self.A.T + time @ self.time + rows @ self.C.T)
        return hidden @ self.B.T + x @ self.E.T


class ToyFlow:
    """What core asks of a backbone, as far as a rollout and the engine need it."""

    guidance_kind = "classifier-free"

    def __init__(self, seed: int = 0, guidance: float = 1.7) -> None:
        self.network = Network(seed)
        self.guidance = guidance

    @property
    def network_forwards(self) -> int:
        return 1 if self.guidance == 1 else 2

    @property
    def network_backwards(self) -> int:
        return self.network_forwards

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Rows) -> Tensor:
        flat = x.flatten(1)  # (B, *latent) -> (B, D)
        v = self.network(flat, sigma, conditioning.positive)
        if self.guidance != 1:
            plain = self.network(flat, sigma, conditioning.negative)
            v = plain + self.guidance * (v - plain)
        return v.view_as(x)

    def decode(self, latents: Tensor) -> Tensor:
        """(B, 2, 3) to images (B, 3, 2, 2), inside (0, 1), never clamped."""
        mix = torch.linspace(-1, 1, D * 12, dtype=latents.dtype).view(12, D)
        return torch.sigmoid(latents.flatten(1) @ mix.sin().T).view(-1, 3, 2, 2)

    def shape(self, request: Request) -> tuple[int, ...]:
        return LATENT

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """An uneven grid: shift 2.5, so that no two steps are of one size."""
        t = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        return 2.5 * t / (1 + 1.5 * t)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        return noise(shape, seeds, torch.float64)

    def trainable(self) -> dict[str, nn.Parameter]:
        return dict(self.network.named_parameters())


def rows_of(indices: Sequence[int]) -> Rows:
    """Conditioning of the prompts `indices`."""
    positive = [torch.tensor([i + 1.0, 2 * i, i * i, 1.0]).sin() for i in indices]
    negative = [torch.tensor([0.3, i, -0.2, 0.5]).cos() for i in indices]
    return Rows(torch.stack(positive).double(), torch.stack(negative).double())


def make_batch(size: int, steps: int) -> Batch:
    """`size` samples, each with its own prompt, seed and conditioning."""
    return Batch(
        prompts=tuple(Prompt(text=f"prompt {i}", metadata={"index": i}) for i in range(size)),
        conditioning=rows_of(range(size)),
        seeds=tuple(1000 + 7 * i for i in range(size)),
        group_ids=tuple(range(size)),
        height=2,
        width=2,
        steps=steps,
    )


def roll_out(flow: ToyFlow, batch: Batch) -> Rollout:
    """Core's own cached rollout by Euler steps."""
    made: Rollout = RolloutLoop().sample_rollout(flow, Ode(), batch)  # type: ignore[arg-type]
    return made


def smooth_reward(images: Tensor, batch: Batch) -> Tensor:
    """(B,), about -1 to 1, curved, different for each prompt."""
    index = torch.tensor([p.metadata["index"] for p in batch.prompts], dtype=images.dtype)
    target = (index[:, None] + torch.arange(12, dtype=images.dtype)).cos()
    return torch.tanh((images.flatten(1) * target).sum(1)) - (images.flatten(1) ** 3).mean(1)


def other_reward(images: Tensor, batch: Batch) -> Tensor:
    """(B,), a second reward on another scale."""
    index = torch.tensor([p.metadata["index"] for p in batch.prompts], dtype=images.dtype)
    return 3 * torch.sin(images.flatten(1).sum(1) + index)


def zero_gradients(flow: ToyFlow) -> None:
    for parameter in flow.network.parameters():
        parameter.grad = None


def gradient_vector(flow: ToyFlow) -> Tensor:
    """All parameter gradients in one vector; a missing one is zeros."""
    every = flow.network.parameters()
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in every]
    ).clone()


def relative(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|; the expected vector must not be zero."""
    size = float(expected.norm())
    assert size > 0, "a comparison with zero proves nothing"
    return float((found - expected).norm()) / size
