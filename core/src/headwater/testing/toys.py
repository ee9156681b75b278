"""Toy problems with closed forms: a linear flow with every Jacobian known, and a Gaussian.

They are small and in float64, so that a difference of 1e-12 is a fault and not a rounding. Neither
closed form uses autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor, nn

from headwater.protocols import Dynamics
from headwater.randomness import noise
from headwater.types import Batch, Prompt, Request, Rollout


def shifted(steps: int, shift: float = 2.5) -> Tensor:
    """(N + 1,) float64 from 1 to 0, no two steps of one size."""
    t = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return shift * t / (1 + (shift - 1) * t)


@attrs.frozen(eq=False)
class TextRows:
    """Conditioning: one row of three numbers a sample."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def index(self, indices: Sequence[int]) -> TextRows:
        """Take the rows `indices`, repeats allowed."""
        return TextRows(self.rows[list(indices)])


class LinearNetwork(nn.Module):
    """v = A x + sigma b + C c, on flat states."""

    def __init__(self, size: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter((scale * torch.randn(shape, generator=generator)).to(dtype))

        self.A = drawn(size, size, scale=0.9 / math.sqrt(size))
        self.b = drawn(size, scale=0.5)
        self.C = drawn(size, 3, scale=0.5)

    def forward(self, x: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        """x (B, D), sigma (B,), rows (B, 3)."""
        return x @ self.A.T + sigma.to(x)[:, None] * self.b + rows.to(x) @ self.C.T


class LinearFlow:
    """A flow whose velocity is linear in state and sigma; the gradient of anything is known.

    Its Euler step is x_{i+1} = (1 - h_i A) x_i + ..., so with g = dL/dx_N the gradient at state i
    is the product of (1 - h_j A)^T over the later steps j, times g; and dL/dv_i = -h_i times
    that at i + 1.
    """

    def __init__(
        self,
        latent: tuple[int, ...] = (2, 3),
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.latent = latent
        self.size = math.prod(latent)
        self.dtype = dtype
        self.network: nn.Module = LinearNetwork(self.size, seed, dtype)
        self.evaluated = 0
        """Samples whose velocity was asked for."""

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: TextRows) -> Tensor:
        """(B, *latent)"""
        self.evaluated += len(x)
        out: Tensor = self.network(x.flatten(1).to(self.dtype), sigma, conditioning.rows)
        return out.view_as(x)

    def shape(self, request: Request) -> tuple[int, ...]:
        """The latent's."""
        return self.latent

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """An uneven grid."""
        return shifted(steps)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """(B, *latent), each from its own seed."""
        return noise(shape, seeds, self.dtype)

    def trainable(self) -> dict[str, nn.Parameter]:
        """A, b and C."""
        return dict(self.network.named_parameters())

    def jacobian(self, start: int, end: int, sigmas: Tensor) -> Tensor:
        """d x_end / d x_start of Euler steps, (D, D)."""
        matrix = self.trainable()["A"].detach()
        out = torch.eye(self.size, dtype=self.dtype)
        for i in range(start, end):
            out = out - (float(sigmas[i]) - float(sigmas[i + 1])) * matrix @ out
        return out

    def upstream(self, rollout: Rollout, gradient: Tensor) -> Tensor:
        """dL/dv of every step, (N, B, *latent), of a gradient (B, *latent) at the image."""
        flat, end, out = gradient.flatten(1), rollout.steps, []
        for i in range(end):
            later = self.jacobian(i + 1, end, rollout.sigmas)
            out.append(-rollout.step_size(i) * (flat @ later).view_as(gradient))
        return torch.stack(out)

    def weight_gradient(
        self, rollout: Rollout, upstream: Tensor, steps: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """dL/d(A, b, C) of dL/dv (N, B, *latent), summed over `steps` (all of them)."""
        chosen = range(rollout.steps) if steps is None else steps
        rows = rollout.batch.conditioning.rows.to(self.dtype)
        out = {name: torch.zeros_like(p.detach()) for name, p in self.trainable().items()}
        for i in chosen:
            s = upstream[i].flatten(1).to(self.dtype)
            out["A"] += s.T @ rollout.state(i).flatten(1).to(self.dtype)
            out["b"] += float(rollout.sigmas[i]) * s.sum(0)
            out["C"] += s.T @ rows
        return out


def batch_of(size: int, steps: int, *, prompts: Sequence[str] = ()) -> Batch:
    """`size` samples with prompts, seeds and conditioning of their own; each is its own group."""
    texts = prompts or [f"prompt {i}" for i in range(size)]
    rows = [torch.tensor([i + 1.0, 2.0 * i, 1.0]).sin() for i in range(size)]
    return Batch(
        prompts=tuple(Prompt(text) for text in texts),
        conditioning=TextRows(torch.stack(rows).double()),
        seeds=tuple(1000 + 7 * i for i in range(size)),
        group_ids=tuple(range(size)),
        height=2,
        width=2,
        steps=steps,
    )


class CurvedNetwork(LinearNetwork):
    """tanh of the linear one, times 1 + sigma, and a part of the state."""

    def forward(self, x: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        """x (B, D), sigma (B,), rows (B, 3)."""
        bent = torch.tanh(2 * super().forward(x, sigma, rows))
        return bent * (1 + sigma.to(x))[:, None] + 0.3 * x.roll(1, dims=1)


class CurvedFlow(LinearFlow):
    """A strongly nonlinear flow of the same form; no closed form holds on it."""

    def __init__(
        self,
        latent: tuple[int, ...] = (2, 3),
        seed: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(latent, seed, dtype)
        self.network = CurvedNetwork(self.size, seed, dtype)


class GaussianFlow:
    """The exact flow from noise to data ~ N(mean, covariance): v = E[eps - data | x].

    With x = (1 - t) data + t eps the marginal is N((1 - t) mean, (1 - t)^2 covariance + t^2), and
    v = -mean + (t - (1 - t) covariance) marginal^-1 (x - (1 - t) mean).
    """

    def __init__(self, mean: Tensor | None = None, covariance: Tensor | None = None) -> None:
        root = torch.tensor([[0.9, 0.0, 0.0], [0.4, 0.6, 0.0], [-0.2, 0.3, 0.5]]).double()
        self.mean = torch.tensor([0.7, -0.4, 0.2]).double() if mean is None else mean
        self.covariance = root @ root.T if covariance is None else covariance

    def marginal(self, sigma: float) -> tuple[Tensor, Tensor]:
        """Mean (D,) and covariance (D, D) of the state at `sigma`."""
        unit = torch.eye(len(self.mean), dtype=torch.float64)
        return (1 - sigma) * self.mean, (1 - sigma) ** 2 * self.covariance + sigma**2 * unit

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: object = None) -> Tensor:
        """(B, D), every sample at its own sigma."""
        return torch.stack([self._one(row, float(t)) for row, t in zip(x, sigma, strict=True)])

    def _one(self, x: Tensor, sigma: float) -> Tensor:
        mean, covariance = self.marginal(sigma)
        unit = torch.eye(len(self.mean), dtype=torch.float64)
        gain = (sigma * unit - (1 - sigma) * self.covariance) @ torch.linalg.inv(covariance)
        return gain @ (x.double() - mean) - self.mean

    def shape(self, request: Request) -> tuple[int, ...]:
        """(D,)"""
        return (len(self.mean),)

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """An uneven grid."""
        return shifted(steps)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """(B, D), each from its own seed."""
        return noise(shape, seeds, torch.float64)

    def sampled(
        self, sigmas: Tensor, dynamics: Dynamics | None = None, stochastic: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Mean (D,) and covariance (D, D) of a rollout's images, without drawing any.

        Every step is affine in the state, x -> M x + m plus noise, so that the moments go from
        step to step in closed form. Euler, but for the steps of `stochastic`.
        """
        d = len(self.mean)
        mean, covariance = torch.zeros(d).double(), torch.eye(d, dtype=torch.float64)
        probes = torch.cat([torch.zeros(1, d), torch.eye(d)]).double()
        for i in range(len(sigmas) - 1):
            v = self.velocity(probes, sigmas[i].expand(d + 1))
            if dynamics is not None and i in stochastic:
                transition = dynamics.transition(probes, v, i, sigmas)
                after, std = transition.mean, transition.std
            else:
                after, std = probes - (float(sigmas[i]) - float(sigmas[i + 1])) * v, 0.0
            offset = after[0]
            matrix = (after[1:] - offset).T
            mean = matrix @ mean + offset
            noisy = std**2 * torch.eye(d, dtype=torch.float64)
            covariance = matrix @ covariance @ matrix.T + noisy
        return mean, covariance
