"""The backbone `mixture`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor
from torch.nn import Module, Parameter

from headwater import randomness
from headwater.protocols import LoadContext
from headwater.types import Prompt, Request
from headwater.validators import above, at_least
from headwater_mixture.network import MixtureFlow
from headwater_mixture.pictures import COMPONENTS, SIZE, means, weights_of

if TYPE_CHECKING:
    from headwater.composition import Run


@attrs.frozen(eq=False)
class Weights:
    """What B prompts say of the components."""

    rows: Tensor
    """(B, K) probabilities."""

    def __len__(self) -> int:
        return len(self.rows)

    def index(self, indices: Sequence[int]) -> Weights:
        """Take the rows `indices`, repeats allowed."""
        return Weights(self.rows[list(indices)])


@attrs.define(eq=False)
class Mixture:
    """8 x 8 pictures, four shapes in four colours, each a Gaussian of a mixture.

    Everything about it is known: the density and the velocity at every sigma, and how often a
    prompt that leaves something open gives each picture ("a ring": each colour a quarter). Hence it
    is for teaching, and for tests of what training does to a distribution. What is trained is a
    small network added to the closed form, zero at first.
    """

    guidance_kind: ClassVar[Literal["none"]] = "none"
    title: ClassVar[str] = "A Gaussian mixture with a closed-form flow"

    spread: float = attrs.field(default=0.15, validator=above(0))
    """Standard deviation of a component around its picture, whose values are in [-1, 1]."""
    width: int = attrs.field(default=64, validator=at_least(1))
    """Hidden units of the trained network."""
    zoom: int = attrs.field(default=1, validator=at_least(1))
    """Pixels on a side of each of the 8 x 8 cells: images are 8 zoom wide and high."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of weights and arithmetic."""

    network: Module = attrs.field(init=False, default=None)
    _flow: MixtureFlow = attrs.field(init=False, default=None)
    _device: str = attrs.field(init=False, default="cpu")

    def load(self, context: LoadContext) -> None:
        """Make the network; the correction's first layer is drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            flow = MixtureFlow(means().to(getattr(torch, self.dtype)), self.spread, self.width)
        self._flow = flow.to(context.device)
        self.network, self._device = self._flow, context.device

    def problems(self, run: Run) -> list[str]:
        """A size or a prompt that it was not made for."""
        found = []
        try:
            self.shape(Request(run.file.rollout.height, run.file.rollout.width))
        except ValueError as error:
            found.append(str(error))
        for prompt in (*run.prompts, *run.evaluation_prompts):
            try:
                weights_of(prompt.text)
            except ValueError as error:
                return [*found, str(error)]
        return found

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """One and one."""
        return 1, 1

    def encode(self, prompts: Sequence[Prompt]) -> Weights:
        """The components' probabilities. ValueError names a word that it does not know."""
        rows = [weights_of(prompt.text) for prompt in prompts]
        return Weights(torch.tensor(rows, dtype=torch.float64, device=self._device))

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Weights) -> Tensor:
        """v (B, 3, 8, 8), at least float32. x: (B, 3, 8, 8). sigma: (B,)."""
        v: Tensor = self.network(x, sigma, conditioning.rows)
        return v

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, 8 zoom, 8 zoom): a logistic of the latent, 0 at black and 1 at white."""
        images = torch.sigmoid(3 * latents)
        return images.repeat_interleave(self.zoom, dim=2).repeat_interleave(self.zoom, dim=3)

    def shape(self, request: Request) -> tuple[int, ...]:
        """(3, 8, 8). ValueError for a size other than 8 zoom."""
        side = SIZE * self.zoom
        if (request.height, request.width) != (side, side):
            raise ValueError(
                f"mixture with zoom = {self.zoom} makes images of {side} x {side}, not "
                f"{request.height} x {request.width}"
            )
        return (3, SIZE, SIZE)

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32 from 1 to 0, evenly."""
        return torch.linspace(1, 0, steps + 1)

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """(B, *shape), each sample from its own seed."""
        return randomness.noise(shape, seeds, getattr(torch, self.dtype), self._device)

    def trainable(self) -> Mapping[str, Parameter]:
        """The correction's parameters by name."""
        return dict(self._flow.named_parameters())

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the velocity is the closed form."""
        self._flow.correcting = False
        try:
            yield
        finally:
            self._flow.correcting = True

    def export(self, path: Path) -> None:
        """Write the correction into the folder `path`."""
        from safetensors.torch import save_file

        save_file(self._flow.state_dict(), path / "mixture.safetensors")

    def describe(self) -> Mapping[str, Any]:
        """Facts from the settings alone."""
        latent = 3 * SIZE * SIZE
        count = (latent + 1 + len(COMPONENTS) + 1) * self.width + (self.width + 1) * latent
        return {"components": len(COMPONENTS), "parameters": count, "dtype": self.dtype}
