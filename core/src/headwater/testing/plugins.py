"""Plugins of ten lines each, so that the loop runs in milliseconds with real hooks.

The toy model's latent is (3, 4, 4), its image the sigmoid of it, its text the length of the
prompt. It is float64 throughout, so that exactness can be tested.
"""

from typing import ClassVar, Literal

import attrs
import torch
from torch import nn

from headwater import hookimpl
from headwater.engine import endpoint_gradient, euler_upstream
from headwater.randomness import noise
from headwater.types import Group, Surrogate

ENTRY_POINTS = {
    "backbone toy": "ToyBackbone",
    "reward toy-brightness": "Brightness",
    "reward toy-count": "Count",
    "reward toy-nan": "SometimesNaN",
    "algorithm toy-direct": "ToyDirect",
    "estimator toy-last": "LastStep",
    "estimator toy-bptt": "EveryStep",
    "estimator toy-noisy": "NoisyStep",
}


@attrs.frozen(eq=False)
class ToyConditioning:
    rows: torch.Tensor

    def __len__(self):
        return len(self.rows)

    def index(self, indices):
        return ToyConditioning(self.rows[list(indices)])


class ToyNetwork(nn.Module):
    def __init__(self, seed, dead):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Parameter(torch.randn(48, 48, generator=generator, dtype=torch.float64) / 7)
        self.text = nn.Parameter(torch.randn(48, generator=generator, dtype=torch.float64))
        if dead:
            self.unused = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x, sigma, text):
        flat = x.flatten(1).double()
        hidden = torch.tanh(flat @ self.inner + text[:, None] * self.text)
        return (hidden * (1 + sigma.double())[:, None]).view_as(x)


@attrs.define(eq=False)
class ToyBackbone:
    """Toy."""

    guidance_kind: ClassVar[str] = "none"
    dead: bool = False
    network: nn.Module = attrs.field(init=False, default=None)

    def network_evaluations(self, guidance):
        return 1, 1

    def load(self, context):
        self.network = ToyNetwork(context.seed, self.dead)

    def encode(self, prompts):
        return ToyConditioning(torch.tensor([len(p.text) / 10 for p in prompts]).double())

    def velocity(self, x, sigma, conditioning):
        return self.network(x, sigma, conditioning.rows)

    def decode(self, latents):
        return torch.sigmoid(latents)

    def shape(self, request):
        return (3, 4, 4)

    def sigmas(self, steps, shape):
        return torch.linspace(1, 0, steps + 1)

    def noise(self, shape, seeds):
        return noise(shape, seeds, torch.float64)

    def trainable(self):
        return dict(self.network.named_parameters())


@attrs.frozen(eq=False)
class Brightness:
    """Mean of the image."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = 1.0

    @hookimpl
    def score(self, images):
        return images.flatten(1).mean(dim=1)


@attrs.frozen(eq=False)
class Count:
    """Bright pixels; not differentiable."""

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = None

    @hookimpl
    def score(self, images):
        return (images > 0.5).double().flatten(1).mean(dim=1)


@attrs.frozen(eq=False)
class SometimesNaN:
    """NaN where the prompt says so; otherwise the brightness."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = 1.0
    kind: Literal["score", "gradient"] = "score"

    @hookimpl
    def score(self, images, batch):
        mean = images.flatten(1).mean(dim=1)
        bad = torch.tensor(["nan" in p.text for p in batch.prompts])
        if self.kind == "score":
            factor = torch.ones_like(mean.detach())
            factor[bad] = float("nan")
            return mean * factor
        root = torch.sqrt((mean - mean.detach()).abs())  # its derivative at 0 is not finite
        return torch.where(bad, mean + root, mean)


@attrs.frozen(eq=False)
class ToyDirect:
    """Minus the weighted rewards."""

    upstream: ClassVar[str] = "endpoint"
    needs_stochastic_steps: ClassVar[bool] = False

    @hookimpl
    def compute_upstream(self, group, rollout, carried):
        return euler_upstream(group, rollout, carried)

    def stochastic_steps(self, step, N):
        return ()

    def trained_steps(self, step, N, generator):
        return ()

    def credit(self, scores, surrogate):
        return endpoint_gradient(-scores.total(), surrogate, scores.count)


def _alone(rollout, steps, coupling):
    groups = tuple(Group((i,), (i,), torch.ones(1, 1), coupling) for i in steps)
    return Surrogate(groups, rollout.state(rollout.steps), None, rollout)


@attrs.frozen(eq=False)
class LastStep:
    """DRaFT-1."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"

    @hookimpl
    def build_surrogate(self, rollout):
        return _alone(rollout, [rollout.steps - 1], 0.0)


@attrs.frozen(eq=False)
class EveryStep:
    """Full backpropagation."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"

    @hookimpl
    def build_surrogate(self, rollout):
        return _alone(rollout, range(rollout.steps), 1.0)


@attrs.frozen(eq=False)
class NoisyStep:
    """One step drawn from the generator."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"

    @hookimpl
    def build_surrogate(self, rollout, generator):
        i = int(torch.randint(rollout.steps, (), generator=generator))
        return _alone(rollout, [i], 0.0)
