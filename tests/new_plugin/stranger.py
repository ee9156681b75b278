"""A package as somebody else would write it from docs/write-a-plugin.md: names, layout, everything.

Unlike the page's it has packed latents, a network with conventions of its own, and a reward that
reads the prompt.
"""

FILES = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-align"
version = "0.3.1"
dependencies = ["headwater>=0.1,<0.2", "torch>=2.6", "attrs>=24.2", "safetensors>=0.4.5"]

[project.entry-points."headwater.estimator"]
late-pairs = "acme_align.pairs:LatePairs"

[project.entry-points."headwater.reward"]
said-colour = "acme_align.said:SaidColour"

[project.entry-points."headwater.backbone"]
mosaic = "acme_align.mosaic:Mosaic"

[tool.hatch.build.targets.wheel]
packages = ["acme_align"]
""",
    "acme_align/__init__.py": "",
    "acme_align/pairs.py": '''
"""The estimator late-pairs."""

from typing import ClassVar

import attrs
import torch
from headwater import hookimpl
from headwater.types import Group, Surrogate
from headwater.validators import in_range


@attrs.frozen(eq=False)
class LatePairs:
    """The later part of the steps in pairs; the first of a pair carries both."""

    upstream: ClassVar[str] = "endpoint"
    endpoint: ClassVar[str] = "sample"

    part: float = attrs.field(default=0.5, validator=in_range(0.1, 1))
    """Part of the steps that is trained, from the image's end."""
    coupling: float = attrs.field(default=0.0, validator=in_range(0, 1))
    """Fraction of the nested gradient."""

    @hookimpl
    def build_surrogate(self, rollout):
        first = rollout.steps - max(1, round(self.part * rollout.steps))
        groups = []
        for i in range(first, rollout.steps, 2):
            steps = tuple(range(i, min(i + 2, rollout.steps)))
            groups.append(Group(steps, steps[:1], torch.ones(1, len(steps)), self.coupling))
        return Surrogate(tuple(groups), rollout.state(rollout.steps), None, rollout)
''',
    "acme_align/said.py": '''
"""The reward said-colour."""

from typing import ClassVar

import attrs
import torch
from headwater import hookimpl

CHANNELS = {"red": 0, "green": 1, "blue": 2}


@attrs.frozen(eq=False)
class SaidColour:
    """Mean of the channels that the prompt names, minus that of the others."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = 1.0

    def load(self, context):
        """Nothing."""

    @hookimpl
    def score(self, images, batch):
        signs = [[1.0 if c in p.text else -0.5 for c in CHANNELS] for p in batch.prompts]
        table = torch.tensor(signs, dtype=images.dtype, device=images.device)
        return (images.flatten(2).mean(2) * table).sum(1)
''',
    "acme_align/mosaic.py": '''
"""The backbone mosaic."""

import copy
from contextlib import contextmanager
from typing import ClassVar

import attrs
import torch
from headwater.randomness import generator_of, noise


@attrs.frozen(eq=False)
class Keys:
    rows: torch.Tensor

    def __len__(self):
        return len(self.rows)

    def index(self, indices):
        return Keys(self.rows[list(indices)])


class Tiles(torch.nn.Module):
    """A network as it is found: tokens and a time from 0 to 1000, and it predicts data - noise."""

    def __init__(self, width):
        super().__init__()
        self.into = torch.nn.Linear(12 + 1 + 4, width)
        self.out = torch.nn.Linear(width, 12)

    def forward(self, tokens, time, keys):
        n = tokens.shape[1]
        time = (time / 1000).view(-1, 1, 1).expand(-1, n, 1)
        keys = keys[:, None, :].expand(-1, n, -1)
        return self.out(torch.tanh(self.into(torch.cat([tokens, time, keys], dim=2))))


@attrs.define(eq=False)
class Mosaic:
    """Images of 2 x 2 tiles, every tile a token."""

    guidance_kind: ClassVar[str] = "none"

    width: int = 8
    """Hidden units."""

    network: torch.nn.Module = attrs.field(init=False, default=None)
    _net: Tiles = attrs.field(init=False, default=None)
    _first: Tiles = attrs.field(init=False, default=None)
    _grid: tuple = attrs.field(init=False, default=(1, 1))
    _device: str = attrs.field(init=False, default="cpu")

    def load(self, context):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            self._net = Tiles(self.width).to(context.device)
        self._first = copy.deepcopy(self._net).requires_grad_(False)
        self.network, self._device = self._net, context.device

    def velocity(self, x, sigma, conditioning):
        return -self.network(x, 1000 * sigma, conditioning.rows)

    def network_evaluations(self, guidance):
        return 1, 1

    def encode(self, prompts):
        rows = [torch.randn(4, generator=generator_of("key", p.text)) for p in prompts]
        return Keys(torch.stack(rows).to(self._device))

    def decode(self, latents):
        side = round(latents.shape[1] ** 0.5)
        tiles = latents.view(-1, side, side, 3, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return torch.sigmoid(tiles.reshape(-1, 3, 2 * side, 2 * side))

    def shape(self, request):
        if request.height != request.width or request.height % 2 or request.height < 2:
            raise ValueError("height and width must be equal and even")
        return ((request.height // 2) ** 2, 12)

    def sigmas(self, steps, shape):
        return torch.linspace(1, 0, steps + 1)

    def noise(self, shape, seeds):
        return noise(shape, seeds, device=self._device)

    def trainable(self):
        return dict(self._net.named_parameters())

    @contextmanager
    def reference(self):
        trained, self.network = self.network, self._first
        try:
            yield
        finally:
            self.network = trained

    def export(self, path):
        from safetensors.torch import save_file

        save_file(self._net.state_dict(), path / "mosaic.safetensors")

    def describe(self):
        return {"parameters": 17 * self.width + self.width + 12 * self.width + 12}
''',
    "conftest.py": 'pytest_plugins = ["headwater.testing.fixtures"]\n',
    "test_acme.py": """
from headwater.testing import BackboneContract, EstimatorContract, RewardContract


class TestPairs(EstimatorContract):
    name = "late-pairs"
    settings = {"part": 0.7, "coupling": 0.5}


class TestSaid(RewardContract):
    name = "said-colour"


class TestMosaic(BackboneContract):
    name = "mosaic"
    size = (8, 8)
""",
    "prompts.txt": "a red kite\na green hill\na blue lake\nred and blue\n",
    "acme.toml": """
name = "acme"
seed = 5
steps = 3

[backbone]
use = "mosaic"

[prompts]
file = "prompts.txt"
per_step = 4
micro_batch = 2

[rollout]
steps = 6
height = 8
width = 8

[reward.colour]
use = "said-colour"

[algorithm]
use = "direct"

[estimator]
use = "late-pairs"
part = 0.7

[optimizer]
lr = 1e-2

[evaluation]
every = 3
prompts = "prompts.txt"
""",
    "other.toml": """
name = "other"
seed = 9
steps = 2

[backbone]
use = "tiny"

[prompts]
file = "tiny:train"
per_step = 4
micro_batch = 4

[rollout]
steps = 6
guidance = 2.0
height = 32
width = 32

[reward.preference]
use = "tiny-preference"

[algorithm]
use = "direct"

[estimator]
use = "leapalign"

[optimizer]
lr = 1e-3

[evaluation]
every = 2
prompts = "tiny:eval"
count = 2

[output]
checkpoint_every = 2
""",
}
