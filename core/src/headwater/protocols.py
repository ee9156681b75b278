"""What plugins offer beside the hooks: plain typed methods, and declared capabilities.

A plugin is one attrs class. Its fields are the keys of its table in the run file, its class
attributes declare what it can do, and nothing heavy happens before `load`.

Any plugin may have `problems(run) -> Sequence[str]`: what is wrong with its settings beside the
rest of a composed run, one sentence each. `headwater check` reports them with its table's name.
Any plugin may have `notes() -> Sequence[str]`: what a user should know after `load`, one line each;
`headwater run` and `headwater sample` show them.
Any plugin may have `state() -> Mapping[str, Tensor | JSON]` and `restore(state) -> None`: what its
later calls need of earlier ones. A checkpoint holds it, tensors as safetensors, the rest as JSON;
`state` gives a snapshot that later changes do not reach. Observers may have both too, without
tensors; `restore` comes before their `start`.
Any plugin may have `measured() -> Mapping[str, float]`: metrics it gathered since the last call.
Any plugin may declare `metrics: ClassVar[Mapping[str, str]]`: what the names it logs mean, a
surrogate's diagnostics included; capitals stand for what varies, `share/KEY` for instance. And
`paper` ("arXiv NNNN.NNNNN" or a URL), `title` or `bibtex`, which `headwater cite` prints.
A backbone or a reward may declare `loads_on_meta: ClassVar[bool] = True`: its `load` with the
device "meta" makes shapes without data from configuration alone, its methods then run on such
tensors, and `headwater plan` counts its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import attrs

from headwater.types import Conditioning, Credit, Prompt, Request, Scores, Surrogate

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch.nn import Module, Parameter

Upstream = Literal["endpoint", "per-step"]


@attrs.frozen(eq=False)
class LoadContext:
    """What a plugin is told before it loads its weights."""

    device: str
    guidance: float = 1.0
    """Guidance scale of rollouts; only a backbone reads it."""
    seed: int = 0
    """Seeds fresh parameters, a LoRA's for instance."""
    prompts: tuple[Prompt, ...] = ()
    """Every prompt the run will ask for, so that a text encoder can be freed early."""


class Loadable(Protocol):
    """A plugin with weights."""

    def load(self, context: LoadContext) -> None:
        """Load weights onto `context.device`. Called once, after all settings were checked."""


class Backbone(Loadable, Protocol):
    """A flow-matching model with its text encoder and decoder."""

    guidance_kind: ClassVar[Literal["none", "embedded", "classifier-free"]]
    network: Module
    """The trained network. A run may replace it by its wrapped self; always call this one."""

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """Network forwards and backwards that one velocity takes at this guidance scale.

        (2, 2) under classifier-free guidance. Needs no weights, as `shape` and `sigmas` do.
        """

    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """Encode B prompts, without gradient."""

    def velocity(self, x: Tensor, sigma: Tensor, conditioning: Any) -> Tensor:
        """The guided velocity, (B, *latent), differentiable in `x` and the weights.

        x: (B, *latent), at least float32. sigma: (B,) float32, one per sample.
        """

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1], differentiable, each sample by itself."""

    def shape(self, request: Request) -> tuple[int, ...]:
        """Shape of one latent. ValueError where the size cannot be made."""

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32 on the CPU, from 1 to 0."""

    def noise(self, shape: tuple[int, ...], seeds: Sequence[int]) -> Tensor:
        """Starting states (B, *latent), each drawn from its own seed alone."""

    def trainable(self) -> Mapping[str, Parameter]:
        """The trained parameters by name."""

    def reference(self) -> AbstractContextManager[None]:
        """Within it, velocities are those of the model before training."""

    def export(self, path: Path) -> None:
        """Write the trained weights for use elsewhere."""

    def describe(self) -> Mapping[str, Any]:
        """Facts from configuration alone, no weights: sizes, parameter counts."""


class Dynamics(Protocol):
    """How one step is taken."""

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """Mean (B, *latent) and standard deviation of step `i` from state `x`."""

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """(B,) mean over the latent's dimensions of the log-density at `next`."""

    def log_prob_grad(
        self, next: Tensor, transition: Transition, x: Tensor, v: Tensor, i: int, sigmas: Tensor
    ) -> Tensor:
        """Closed form of d log_prob / d v, (B, *latent)."""

    def sensitivity(self, i: int, sigmas: Tensor) -> float:
        """d mean / d v of step `i`, one number."""


@attrs.frozen(eq=False)
class Transition:
    """A Gaussian step."""

    mean: Tensor
    """(B, *latent)"""
    std: float
    """Full standard deviation of the step; 0 where it is deterministic."""


class Reward(Loadable, Protocol):
    """A reward: a `score` hook and what it declares.

    One may also have `embed(images) -> Tensor`, features (B, D) of images (B, 3, H, W) in [0, 1]:
    `headwater eval` measures in it how different the samples of a prompt are.
    """

    differentiable: ClassVar[bool]
    needs_text: ClassVar[bool]
    margin: ClassVar[float | None]
    """A hinge margin that suits its scale; None where it states none."""


class Algorithm(Protocol):
    """A reinforcement-learning or direct-gradient objective: `compute_upstream` and these.

    A per-step one may also have
    - `shared_start_noise: bool`: the samples of a prompt start from one noise;
    - `reference_model: "none" | "adapter" | "copy"`: whose velocities `rollout.references` holds,
      the backbone's with its adapter off or those of a frozen copy of the weights.
    """

    upstream: ClassVar[Upstream]
    needs_stochastic_steps: ClassVar[bool]

    def stochastic_steps(self, step: int, N: int) -> tuple[int, ...]:
        """Steps of a rollout that follow the dynamics; `step` is its first optimizer step."""

    def trained_steps(self, step: int, N: int, generator: Generator) -> tuple[int, ...]:
        """Steps that are trained; empty for an endpoint upstream.

        step: as above. generator: seeded by the optimizer step.
        """

    def credit(self, scores: Scores, surrogate_or_groups: Surrogate | Sequence[int]) -> Credit:
        """What the scores say of each sample.

        Endpoint upstream: called once a micro-batch with its surrogate; the loss weights and n
        are in the gradient. Per-step: called once a rollout with the group ids (B,) of all its
        samples; gives advantages and a mask.
        """


class Estimator(Protocol):
    """A gradient estimator: a `build_surrogate` hook and what it declares."""

    upstream: ClassVar[Upstream]
    endpoint: str
    """`sample`, `posterior-mean` or `sample-and-renoised`; `none` for a per-step upstream.

    One may also declare `choices: ClassVar[Mapping[str, str]]`, its four design choices in words:
    `endpoint`, `active`, `weights` and `coupling`; and `exact: ClassVar[bool] = True`, where its
    gradient is that of its objective on any flow."""
