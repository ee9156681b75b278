"""The tables of a run file that core reads itself. Fields are keys, docstrings their meaning."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from headwater.validators import above, at_least, each, from_below, in_range


def _check_name(_: object, __: object, value: str) -> None:
    """A name is part of a folder's name."""
    if value and not re.fullmatch(r"\w[\w .+-]{0,99}", value):
        raise ValueError(
            f"expected at most 100 letters, digits, spaces or any of . _ + -, got {value[:40]!r}"
        )


def _check_weight(_: object, __: object, value: float) -> None:
    """A weight of 0 would score a reward for nothing."""
    if value == 0 or not math.isfinite(value):
        raise ValueError(f"expected a finite number other than 0, got {value!r}")


@attrs.frozen(eq=False)
class Top:
    """The keys above all tables."""

    steps: int = attrs.field(validator=in_range(1, 10_000_000))
    """Optimizer steps of the run; a skipped update counts."""
    name: str = attrs.field(default="", validator=_check_name)
    """Of the run and of its folder `runs/NAME-NNN`; empty for the file's."""
    seed: int = attrs.field(default=0, validator=in_range(0, 2**63 - 1))
    """Of all noise, index draws, prompts and fresh parameters."""


@attrs.frozen(eq=False)
class RewardKeys:
    """[reward.KEY]: any number of rewards, trained in the file's order; KEY is yours."""

    weight: float = attrs.field(default=1.0, validator=_check_weight)
    """Factor in the weighted sum; negative for a score that should fall. Held-out rewards have none."""


@attrs.frozen(eq=False)
class AlgorithmKeys:
    """[algorithm]: what the scores ask of the gradient."""

    updates: int = attrs.field(default=1, validator=at_least(1))
    """Optimizer steps a rollout: its prompts are dealt to that many parts, each used once."""
    epochs: int = attrs.field(default=1, validator=at_least(1))
    """Passes over the same rollout."""


@attrs.frozen(eq=False)
class EstimatorKeys:
    """[estimator]: how the gradient is taken."""

    draws: int = attrs.field(default=1, validator=at_least(1))
    """The prompts of a step are cut into that many equal parts, each with indices of its own: less variance at the same cost."""


@attrs.frozen(eq=False)
class NoKeys:
    """A plugin's table of which core reads `use` alone."""


@attrs.frozen(eq=False)
class Prompts:
    """[prompts]: what is drawn."""

    file: str
    """Prompt list: txt (one a line) or jsonl (prompt, negative_prompt, metadata), relative to the run file; or a list that a plugin ships, `tiny:train`."""
    per_step: int = attrs.field(default=8, validator=in_range(1, 100_000))
    """Prompts per optimizer step, over all processes."""
    group: int = attrs.field(default=1, validator=in_range(1, 10_000))
    """Samples per prompt."""
    micro_batch: int = attrs.field(default=8, validator=at_least(1))
    """Samples held in memory at once; it never changes the result."""


@attrs.frozen(eq=False)
class RolloutTable:
    """[rollout]: how one sample is drawn."""

    steps: int = attrs.field(default=20, validator=in_range(1, 10_000))
    """Steps N of a rollout."""
    guidance: float = attrs.field(default=1.0, validator=at_least(0))
    """Guidance scale."""
    height: int = attrs.field(default=512, validator=at_least(1))
    """Pixels."""
    width: int = attrs.field(default=512, validator=at_least(1))
    """Pixels."""
    store: Literal["float32", "bfloat16"] = "float32"
    """What the states are rounded to, before they are scored."""
    keep: Literal["device", "cpu"] = "device"
    """Where a per-step algorithm's rollout waits for its updates."""


@attrs.frozen(eq=False)
class EngineTable:
    """[engine]: how a group's active evaluations are run."""

    mode: Literal["stream", "joint", "fused"] = "stream"
    """One evaluation at a time, one joint backward, or one concatenated batch."""
    precision: Literal["full", "bfloat16"] = "full"
    """What velocities are computed in: the weights' own type, or bfloat16 by autocast. With float32
    weights the latter is mixed precision, and small updates are not lost to rounding."""


@attrs.frozen(eq=False)
class Optimizer:
    """[optimizer]: AdamW and its schedule."""

    lr: float = attrs.field(default=1e-4, validator=above(0))
    """Learning rate."""
    weight_decay: float = attrs.field(default=1e-4, validator=at_least(0))
    """Decoupled weight decay."""
    betas: tuple[float, float] = attrs.field(default=(0.9, 0.999), validator=each(from_below(0, 1)))
    """AdamW's moment decays."""
    max_grad_norm: float = attrs.field(default=1.0, validator=above(0))
    """Gradient norm is clipped to it."""
    warmup: int = attrs.field(default=0, validator=at_least(0))
    """Optimizer steps of linear warm-up."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up."""
    ema: float = attrs.field(default=0.995, validator=from_below(0, 1))
    """Decay of the exponential moving average of the weights; 0 for none."""
    states: Literal["full", "8bit"] = "full"
    """AdamW's moments: of the weights' own type, or in 8 bits by bitsandbytes."""


@attrs.frozen(eq=False)
class GuardTable:
    """[guard]: which updates are skipped, and when the run stops."""

    norm_ratio: float = attrs.field(default=100.0, validator=above(1))
    """A gradient norm above this many times the running median of the last 50 is skipped."""
    max_skips: int = attrs.field(default=5, validator=at_least(1))
    """Skips in a row, then exit code 3."""
    nonfinite_reward: Literal["fail", "drop-group"] = "fail"
    """A reward that is not finite stops the run, or drops its prompt's group."""


@attrs.frozen(eq=False)
class OutputTable:
    """[output]: what is written."""

    checkpoint_every: int = attrs.field(default=50, validator=at_least(1))
    """Optimizer steps between checkpoints; the last and the best are kept."""
    keep_every: int = attrs.field(default=0, validator=at_least(0))
    """Keep every checkpoint whose step divides by it; 0 for none."""
    trackers: tuple[str, ...] = ("jsonl", "tensorboard")
    """Observers that record the metrics; a table [observer.NAME] holds the settings of one."""
    images: int = attrs.field(default=16, validator=at_least(0))
    """Samples on the picture of each evaluation."""


@attrs.frozen(eq=False)
class PluginTable:
    """A table that picks a plugin: its name, the keys core reads, and the plugin's own."""

    use: str
    """Name of an installed plugin, or `DISTRIBUTION:NAME` where two packages offer it."""
    core: Mapping[str, Any] = attrs.field(factory=dict)
    settings: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Evaluation:
    """[evaluation]: held-out prompts with fixed noise."""

    every: int = attrs.field(default=20, validator=at_least(1))
    """Optimizer steps between evaluations; the first and the last step always are."""
    prompts: str = ""
    """Prompt list, as `[prompts] file`; empty for no evaluation."""
    count: int = attrs.field(default=0, validator=at_least(0))
    """How many of its prompts, from the first on; 0 for all."""
    steps: int = attrs.field(default=0, validator=at_least(0))
    """Rollout steps; 0 for those of [rollout]."""
    batch: int = attrs.field(default=0, validator=at_least(0))
    """Samples held in memory at once; 0 for `[prompts] micro_batch`. It never changes the result."""
    weights: Literal["ema", "live"] = "ema"
    """What is evaluated, sampled and exported."""
    keep_best: str = ""
    """Reward key that names the best checkpoint; empty for the weighted total of the trained ones."""
    patience: int = attrs.field(default=0, validator=at_least(0))
    """Evaluations in a row in which the trained total rises and the held-out reward `keep_best` falls, then a warning of reward hacking; 0 for none."""
    on_hacking: Literal["warn", "stop"] = "warn"
    """Whether the run then goes on or ends with exit code 3 after a checkpoint."""
    rewards: Mapping[str, PluginTable] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class RunFile:
    """A whole run file, core's tables structured, plugin tables still raw settings."""

    path: Path
    name: str
    seed: int
    steps: int
    backbone: PluginTable
    prompts: Prompts
    rollout: RolloutTable
    dynamics: PluginTable
    rewards: Mapping[str, PluginTable]
    algorithm: PluginTable
    estimator: PluginTable
    engine: EngineTable
    optimizer: Optimizer
    guard: GuardTable
    evaluation: Evaluation
    output: OutputTable
    observers: Mapping[str, PluginTable] = attrs.field(factory=dict)
    """Settings by the name in `[output] trackers`."""
