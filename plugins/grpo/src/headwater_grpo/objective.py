"""What every algorithm of the family shares: advantages, the clipped term, KL, and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.types import Credit, Group, Rollout, Scores
from headwater.validators import above, at_least, in_range
from headwater_grpo import advantages, ratios
from headwater_grpo.record import Record
from headwater_grpo.shares import parts_of_each, parts_of_sum, shares

if TYPE_CHECKING:
    from headwater.composition import Run
    from headwater.protocols import Dynamics, Transition


METRICS = {
    "loss": "the clipped objective; near 0 before the first update, since advantages add up to 0",
    "clipped": "part of the trained steps whose term has no gradient because it is clipped",
    "ratio": "mean ratio of the new to the old density, 1 before the first update of a rollout",
    "ratio_deviation": "largest distance of a ratio from 1",
    "kl_x": "`beta` above 0: mean KL to the model before training, of the step means",
    "kl_x-flow-grpo": "the same times -dt",
    "kl_v": "the same of the velocities: mean square difference",
    "share/KEY": "with two rewards or more: part of the advantage that comes from reward KEY",
}


@attrs.frozen(eq=False)
class Step:
    """One trained step under the current weights."""

    i: int
    dt: float
    sensitivity: float
    """c = dm/dv."""
    x: Tensor
    """(B, *latent) state before it."""
    next: Tensor
    """(B, *latent) stored state after it."""
    v: Tensor
    """(B, *latent)"""
    transition: Transition


@attrs.define(eq=False)
class Grpo:
    """Group-relative policy optimization; subclasses say which steps are noisy and trained."""

    upstream: ClassVar[Literal["per-step"]] = "per-step"
    needs_stochastic_steps: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, str]] = METRICS

    clip: float = attrs.field(default=1e-4, validator=above(0))
    """Clip range of the ratio; published values hold for latents of about 65,536 elements."""
    clip_upper: float = attrs.field(default=0.0, validator=at_least(0))
    """Upper clip range where it differs from the lower one; 0 for `clip`."""
    advantage_clip: float = attrs.field(default=5.0, validator=above(0))
    """Advantages are clipped to plus and minus this."""
    scale: Literal["group", "global", "none"] = "group"
    """What centred rewards are divided by: the group's deviation, that of all, or nothing."""
    unbiased: bool = False
    """Deviation over G - 1 instead of G."""
    epsilon: float = attrs.field(default=1e-4, validator=at_least(0))
    """Added to the deviation, or its least value; see `floor`."""
    floor: Literal["add", "max"] = "add"
    """deviation + epsilon, or max(deviation, epsilon)."""
    trimmed: float = attrs.field(default=0.0, validator=in_range(0, 0.9))
    """Part of each group, its lowest rewards, that is left out of the group's statistics."""
    combine: Literal["sum", "each"] = "sum"
    """Several rewards: weighted sum then normalise, or normalise each then sum."""
    normalise_weights: bool = False
    """With combine = "each": reward weights are divided by their sum."""
    normalise_batch: bool = False
    """With combine = "each": the sum is centred and scaled over all samples."""
    best_of: int = attrs.field(default=0, validator=at_least(0))
    """Samples of a group that are trained on, the best and the worst half; 0 for all."""
    shared_noise: bool = False
    """The samples of a prompt start from one noise."""
    beta: float = attrs.field(default=0.0, validator=at_least(0))
    """Weight of the KL to the model before training."""
    kl: Literal["x", "x-flow-grpo", "v"] = "x"
    """Space of the KL: step means over their variance, the same times -dt, or velocities."""
    reference: Literal["adapter", "copy"] = "adapter"
    """The model before training: the adapter switched off, or a frozen copy of the weights."""

    _record: Record = attrs.field(init=False, factory=Record)

    def __attrs_post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Settings that have no effect beside the others are refused."""
        if self.combine == "sum" and (self.normalise_weights or self.normalise_batch):
            raise ValueError('normalise_weights and normalise_batch need combine = "each"')
        if self.beta == 0 and self.reference == "copy":
            raise ValueError('reference = "copy" is of no use while beta is 0')

    @property
    def shared_start_noise(self) -> bool:
        """Read by core's geometry."""
        return self.shared_noise

    @property
    def reference_model(self) -> Literal["none", "adapter", "copy"]:
        """Read by core: whose velocities the KL compares with."""
        return self.reference if self.beta > 0 else "none"

    def problems(self, run: Run) -> list[str]:
        """What cannot work in this run."""
        group, found = run.file.prompts.group, []
        if group < 2:
            found.append(f"advantages compare samples of a prompt; [prompts] group is {group}")
        if self.best_of > group:
            found.append(f"best_of = {self.best_of} of [prompts] group = {group}")
        full = getattr(run.backbone.plugin, "train", "") == "full"
        if self.beta > 0 and full and self.reference == "adapter":
            found.append(
                'beta > 0 under full training has no adapter to switch off; set reference = "copy"'
            )
        return found

    def credit(self, scores: Scores, groups: Sequence[int]) -> Credit:
        """Advantages (B,) of a whole rollout; groups without spread are not kept."""
        settings: advantages.Normalisation = {
            "unbiased": self.unbiased,
            "epsilon": self.epsilon,
            "floor": self.floor,
            "trimmed": self.trimmed,
        }
        if self.combine == "sum":
            total = scores.total()
            found = advantages.group_advantages(total, groups, self.scale, **settings)
            kept = advantages.spread_mask(total, groups)
            parts = parts_of_sum(scores.values, scores.weights, groups, self.scale, **settings)
        else:
            batch: advantages.OfEach = {
                "normalise_weights": self.normalise_weights,
                "normalise_batch": self.normalise_batch,
            }
            given = (scores.values, scores.weights, groups, self.scale)
            found = advantages.each_then_sum(*given, **batch, **settings)
            parts = parts_of_each(*given, **batch, **settings)
            masks = [advantages.spread_mask(v, groups) for v in scores.values.values()]
            kept = torch.stack(masks).any(dim=0)
        if self.best_of:  # before the clip, which makes ties
            kept &= advantages.best_of(found, groups, self.best_of)
        if len(parts) > 1:
            for key, share in shares(parts, kept).items():
                self._record.average(f"share/{key}", torch.tensor([share], dtype=torch.float64))
        found = found.clamp(-self.advantage_clip, self.advantage_clip)
        return Credit(advantages=found, kept=kept, count=scores.count)

    @hookimpl
    def compute_upstream(
        self, group: Group, rollout: Rollout, credit: Credit, velocities: Tensor
    ) -> Tensor:
        """dL/dv of every step of a group, closed form: (S, B, *latent)."""
        assert credit.advantages is not None and credit.kept is not None
        out = []
        for i, v in zip(group.steps, velocities, strict=True):
            step = _step(rollout, i, v)
            s = self._policy(step, rollout, credit)
            if self.beta > 0:
                s = s + self._kl(step, rollout, credit)
            out.append(s * ratios.along(credit.kept, s))
        return torch.stack(out)

    def _ratio(self, step: Step, rollout: Rollout) -> tuple[Tensor, Tensor, float]:
        """(B,) ratio, (B, *latent) gradient of its logarithm, and the weight of the term."""
        assert rollout.log_probs is not None
        dynamics: Dynamics = rollout.dynamics
        log_prob = dynamics.log_prob(step.next, step.transition)
        gradient = dynamics.log_prob_grad(
            step.next, step.transition, step.x, step.v, step.i, rollout.sigmas
        )
        return torch.exp(log_prob - rollout.log_probs[step.i]), gradient, 1.0

    def _policy(self, step: Step, rollout: Rollout, credit: Credit) -> Tensor:
        """Upstream of the clipped term, (B, *latent)."""
        assert credit.advantages is not None and credit.kept is not None
        ratio, gradient, weight = self._ratio(step, rollout)
        values = credit.advantages.to(ratio.dtype)
        low, high = self.clip, self.clip_upper or self.clip
        loss = weight * ratios.clipped_loss(ratio, values, low, high)
        fine = ratios.unclipped(ratio, values, low, high)
        self._record.add("loss", loss[credit.kept].sum() / credit.count)
        self._record.average("clipped", (~fine).to(ratio.dtype))
        self._record.average("ratio", ratio)
        self._record.largest("ratio_deviation", (ratio - 1).abs())
        if rollout.current:
            self._check_first_ratio(float((ratio - 1).abs().max()))
        return weight * ratios.policy_upstream(gradient, ratio, values, low, high, credit.count)

    def _check_first_ratio(self, deviation: float) -> None:
        """Before an update the ratio is 1, but for another batch's rounding."""
        if deviation > self.clip and not self._record.warned:
            self._record.warned = True
            warnings.warn(
                f"the ratio before the first update is off by {deviation:.2g}, more than the clip "
                f"range {self.clip:g}: rollout and update do not evaluate the same function "
                f"(micro-batch or engine mode differ in a half type, or the network has dropout)",
                stacklevel=2,
            )

    def _kl(self, step: Step, rollout: Rollout, credit: Credit) -> Tensor:
        """Upstream of beta / n times the KL, (B, *latent)."""
        reference = rollout.references[step.i].to(step.v.dtype)
        new, old = step.v, reference
        if self.kl != "v":
            dynamics: Dynamics = rollout.dynamics
            new = step.transition.mean
            old = dynamics.transition(step.x, reference, step.i, rollout.sigmas).mean
        numbers = (step.transition.std, step.dt)
        self._record.average(f"kl_{self.kl}", ratios.kl(self.kl, new, old, *numbers))
        gradient = ratios.kl_upstream(self.kl, new, old, *numbers, step.sensitivity)
        return gradient * (self.beta / credit.count)

    def measured(self) -> Mapping[str, float]:
        """Loss, clipped fraction, ratio and KL since the last call."""
        return self._record.drain()


def _step(rollout: Rollout, i: int, v: Tensor) -> Step:
    """Step i of a rollout with the velocity of the current weights."""
    dynamics: Dynamics = rollout.dynamics
    x, sigmas = rollout.state(i), rollout.sigmas
    return Step(
        i=i,
        dt=float(sigmas[i + 1]) - float(sigmas[i]),
        sensitivity=dynamics.sensitivity(i, sigmas),
        x=x,
        next=rollout.state(i + 1),
        v=v,
        transition=dynamics.transition(x, v, i, sigmas),
    )
