"""The records that pass between the stages of a run.

Legend, used in every docstring of the project:

    B  images of a batch          N  steps of a rollout
    S  steps of a group           A  active steps of a group
    C H W  channels, height, width;  *latent  the shape of one latent, packed or not

Step `i` goes from `sigmas[i]` to `sigmas[i + 1]`; sigma 1 is noise, sigma 0 is the image.
`x_t = (1 - t) x_data + t eps`, the velocity is `v = eps - x_data`, an Euler step is
`x_{i+1} = x_i - h_i v_i` with `h_i = sigmas[i] - sigmas[i + 1] > 0`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class RecordError(ValueError):
    """A record that cannot be: a fault of the code that makes it, not of a setting."""


class Conditioning(Protocol):
    """What a backbone made of the prompts. Core knows its length and how to index it."""

    def __len__(self) -> int: ...

    def index(self, indices: Sequence[int]) -> Conditioning:
        """Take the rows `indices`, repeats allowed: split, repeat and concatenation in one."""
        ...


@attrs.frozen(eq=False)
class Prompt:
    """One prompt and what came with it."""

    text: str
    negative: str = ""
    images: tuple[str, ...] = ()
    """Paths of input images, for editing models."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Request:
    """What one sample is asked to be."""

    height: int
    width: int
    frames: int = 1
    duration: float = 0.0


@attrs.frozen(eq=False)
class Batch:
    """B samples to be drawn together, all of one shape."""

    prompts: tuple[Prompt, ...]
    conditioning: Any
    """A `Conditioning` of length B (None only for a toy velocity that takes none)."""
    seeds: tuple[int, ...]
    """(B,) seed of each sample's noise; see `headwater.randomness`."""
    group_ids: tuple[int, ...]
    """(B,) samples with one id share a prompt and are compared with each other."""
    height: int
    width: int
    steps: int
    """N."""
    stochastic_steps: tuple[int, ...] = ()
    """Steps taken by the run's dynamics; all others are Euler steps."""
    trained_steps: tuple[int, ...] = ()
    """Steps that a per-step algorithm trains."""
    store: str = "float32"
    """What the states are rounded to before anything reads them."""
    policy_version: int = 0
    """Number of updates applied to the weights that are evaluated on this batch now."""
    start_seeds: tuple[int, ...] = ()
    """(B,) seed of each sample's starting noise, where it is shared; empty for `seeds`."""

    def __len__(self) -> int:
        return len(self.prompts)

    def index(self, indices: Sequence[int]) -> Batch:
        """Take the samples `indices`, repeats allowed."""
        conditioning = self.conditioning
        return attrs.evolve(
            self,
            prompts=tuple(self.prompts[i] for i in indices),
            conditioning=None if conditioning is None else conditioning.index(indices),
            seeds=tuple(self.seeds[i] for i in indices),
            group_ids=tuple(self.group_ids[i] for i in indices),
            start_seeds=tuple(self.start_seeds[i] for i in indices if self.start_seeds),
        )


@attrs.frozen(eq=False)
class Rollout:
    """A cached trajectory of B samples, without autograd history."""

    batch: Batch
    latents: Tensor
    """(N + 1, B, *latent), from noise to image."""
    sigmas: Tensor
    """(N + 1,) float32 or float64, falling to 0."""
    velocities: Tensor | None = None
    """(N, B, *latent) guided velocities in the dtype the backbone gave, or None."""
    log_probs: Tensor | None = None
    """(N, B) of the stochastic steps, or None."""
    policy_version: int = 0
    """Number of updates applied to the weights that made it."""
    dynamics: Any = None
    """The `Dynamics` of its stochastic steps; core fills it in."""
    references: Mapping[int, Tensor] = attrs.field(factory=dict)
    """step: (B, *latent) velocity of the reference model, where the algorithm asks for one."""

    def to(self, device: torch.device | str) -> Rollout:
        """The rollout's own tensors on a device; its batch stays where it is."""
        velocities, log_probs = self.velocities, self.log_probs
        return attrs.evolve(
            self,
            latents=self.latents.to(device),
            velocities=None if velocities is None else velocities.to(device),
            log_probs=None if log_probs is None else log_probs.to(device),
            references={step: v.to(device) for step, v in self.references.items()},
        )

    @property
    def current(self) -> bool:
        """Whether the weights evaluated now are those that made it."""
        return self.policy_version == self.batch.policy_version

    @property
    def steps(self) -> int:
        """N."""
        return len(self.sigmas) - 1

    def state(self, step: int) -> Tensor:
        """x at the start of `step` (N for the image): (B, *latent), at least float32."""
        return at_least_float32(self.latents[step])

    def velocity(self, step: int) -> Tensor:
        """The cached velocity of `step`, (B, *latent), at least float32.

        Where the rollout holds none, an Euler step gives it back: v = (x_i - x_{i+1}) / h_i.
        Raises ValueError for a stochastic step, from which it cannot be told.
        """
        if self.velocities is not None:
            return at_least_float32(self.velocities[step])
        if step in self.batch.stochastic_steps:
            raise ValueError(f"step {step} is stochastic and the rollout holds no velocities")
        return (self.state(step) - self.state(step + 1)) / self.step_size(step)

    def step_size(self, step: int) -> float:
        """h_i = sigmas[i] - sigmas[i + 1]."""
        return float(self.sigmas[step]) - float(self.sigmas[step + 1])


def _check_group(group: Group, attribute: object, coupling: float) -> None:
    steps, active = list(group.steps), list(group.active)
    shape = tuple(group.basis.shape)
    if not active or sorted(set(steps)) != steps or sorted(set(active)) != active:
        raise RecordError(f"steps and active must be increasing, got {steps} and {active}")
    if not set(active) <= set(steps):
        raise RecordError(f"active steps {active} are not among the group's steps {steps}")
    if shape != (len(active), len(steps)):
        raise RecordError(f"basis must be ({len(active)}, {len(steps)}), got {shape}")
    if coupling != 0 and active[0] != steps[0]:
        raise RecordError(
            f"coupling {coupling} needs the group's first step {steps[0]} active, got {active}"
        )


@attrs.frozen(eq=False)
class Group:
    """Steps whose upstream is carried by a few re-evaluated ones."""

    steps: tuple[int, ...]
    """(S,) increasing."""
    active: tuple[int, ...]
    """(A,) increasing, a subset of `steps`."""
    basis: Tensor
    """(A, S): the cotangent of active step a is `sum_i basis[a, i] upstream[i]`."""
    coupling: float = attrs.field(default=0.0, validator=_check_group)
    """Fraction of the gradient at the input of the first step that is added to `carried`."""


@attrs.frozen(eq=False)
class Surrogate:
    """What an estimator makes of a rollout: the groups, and where the reward is read."""

    groups: tuple[Group, ...]
    """From noise to image; the engine runs them last to first."""
    endpoint: Tensor | None
    """(B', *latent) latent that is decoded and scored; None for a per-step upstream."""
    sample_weights: Tensor | None
    """(B',) factor of each sample's loss; None for ones."""
    rollout: Rollout
    """What the groups index: the rollout given, or one the estimator made of it."""
    diagnostics: Mapping[str, float] = attrs.field(factory=dict)
    cached_velocities: bool = False
    """For a per-step upstream: take `rollout.velocities` instead of fresh ones."""
    measurements: tuple[int, int] = (0, 0)
    """Velocities and backwards per sample that the estimator's own hooks add to the engine's.

    Measurements are made on the first micro-batch of a part; the others' surrogates have none.
    """


@attrs.frozen(eq=False)
class Scores:
    """The scores of B' images, by the run file's reward keys."""

    values: Mapping[str, Tensor]
    """KEY: (B',), higher is better; with autograd history where the reward has a gradient."""
    weights: Mapping[str, float]
    margins: Mapping[str, float | None]
    """What each reward states as a sensible hinge margin for its scale."""
    count: int
    """n of the loss: all samples of the optimizer step, as planned. A per-step algorithm's n is
    that times the trained steps; core multiplies."""

    def total(self) -> Tensor:
        """Weighted sum over the rewards, (B',)."""
        parts = [self.weights[key] * value for key, value in self.values.items()]
        return sum(parts[1:], start=parts[0])


@attrs.frozen(eq=False)
class Credit:
    """What the scores say of each sample."""

    endpoint_gradient: Tensor | None = None
    """(B', *latent) dL/d endpoint, for an endpoint upstream."""
    advantages: Tensor | None = None
    """(B,) for a per-step upstream."""
    kept: Tensor | None = None
    """(B,) bool; samples that are not kept have a zero upstream."""
    loss: float = 0.0
    """Share of the loss formed here, for the log."""
    count: int = 1
    """n of the loss."""

    def index(self, indices: Sequence[int]) -> Credit:
        """Take the samples `indices` of advantages and mask."""
        rows = list(indices)
        return attrs.evolve(
            self,
            advantages=None if self.advantages is None else self.advantages[rows],
            kept=None if self.kept is None else self.kept[rows],
        )


@attrs.frozen(eq=False)
class Diagnostics:
    """What the engine did: network work per sample, and measurements."""

    forwards: int
    """Network forwards per sample (two a velocity under classifier-free guidance)."""
    backwards: int
    values: Mapping[str, float] = attrs.field(factory=dict)
    carried: Tensor | None = None
    """Gradient at the start of the first group, (B', *latent), or None."""
    squares: Mapping[int, float] = attrs.field(factory=dict)
    """Active step: squared norm of the cotangent that goes backward there, over all samples."""


def at_least_float32(x: Tensor) -> Tensor:
    """Cast half types up; float32 and float64 stay."""
    return x.float() if x.element_size() < 4 else x
