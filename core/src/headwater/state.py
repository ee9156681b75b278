"""What a trainer is made of between two optimizer steps, for a checkpoint and back.

Schedule, prompts, noise and index draws are functions of the optimizer step alone and need no
state. The rest is here: weights and their average, the optimizer, the guards, what plugins
remember, the global generators, and a rollout that still has updates before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from headwater import generators, kept_rollout, moments, sharding
from headwater.composition import Run
from headwater.errors import HeadwaterError
from headwater.faults import blamed
from headwater.geometry import position_of

if TYPE_CHECKING:
    from headwater.trainer import Trainer

STEMS = ("optimizer", "plugins", "generators", "rollout")
Files = dict[str, dict[str, Tensor]]
"""File stem: name: tensor."""


@attrs.frozen(eq=False)
class Volatile:
    """What an optimizer step changes from its beginning on, unlike the weights."""

    plugins: Mapping[str, Any]
    """Table of the run file: JSON."""
    tensors: dict[str, Tensor]
    """Tensors of plugins, `TABLE/NAME`."""
    generators: dict[str, Tensor]


def volatile(run: Run) -> Volatile:
    """A snapshot. HeadwaterError where a plugin's state cannot be saved."""
    tables: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for named in run.named:
        if not _resumable(named.plugin):
            continue
        with blamed(named, "state"):
            state = named.plugin.state()
            plain = {key: v for key, v in state.items() if not isinstance(v, Tensor)}
            tables[named.key] = _as_json(plain, f"[{named.key}] ({named.entry.title})")
            tensors |= {f"{named.key}/{key}": v for key, v in state.items() if key not in plain}
    return Volatile(tables, tensors, generators.states())


def capture(trainer: Trainer, done: int) -> tuple[dict[str, Any], Files]:
    """JSON and tensors of a trainer after `done` optimizer steps, its weights left out.

    Every process must call it: what is sharded is gathered.
    """
    now = trainer.before_step or volatile(trainer.stage.run)
    state: dict[str, Any] = {
        "policy_version": trainer.policy_version,
        "peak_memory": trainer.peak_memory,
        "guard": trainer.guard.state(),
        "gradient_check": trainer.check.state(),
        "without_gradient": [n for n, p in trainer.parameters.items() if p.grad is None],
        "plugins": now.plugins,
    }
    files = {
        "optimizer": trainer.update.moments(),
        "plugins": now.tensors,
        "generators": now.generators,
    }
    if trainer.collected and trainer.collected_for == position_of(_file(trainer), done).rollout:
        state["rollout"], files["rollout"] = kept_rollout.pack(trainer.collected)
    return state, files


def restore(
    trainer: Trainer,
    done: int,
    state: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    average: Mapping[str, Tensor],
    files: Files,
) -> None:
    """Go on from `capture`. ValueError, KeyError, TypeError or RuntimeError where it is no such.

    Everything is looked at before anything is changed.
    """
    parameters = trainer.parameters
    _check_fit("weights", weights, parameters)
    _check_fit("ema", average, parameters if trainer.average.decay else {})
    optimizer = moments.unpack(files["optimizer"], parameters, _file(trainer).optimizer.states)
    version = int(state["policy_version"])
    if not 0 <= version <= done or (version > 0 and not optimizer):
        raise ValueError(f"policy version {version} at step {done}, {len(optimizer)} moments")
    bare = set(state["without_gradient"])
    if not isinstance(state["plugins"], dict):
        raise ValueError("plugins: no table")
    device = next(iter(parameters.values())).device
    collected = []
    if "rollout" in state:
        collected = kept_rollout.unpack(
            trainer.stage, done, state["rollout"], files["rollout"], device
        )
    trainer.guard.restore(state["guard"])
    trainer.check.restore(state["gradient_check"])
    generators.restore(files["generators"])
    _restore_plugins(trainer.stage.run, state["plugins"], files["plugins"])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(sharding.like(weights[name], parameter))
            # As after a step: a gradient of zeros is added to, and 0 + -0.0 is not -0.0.
            parameter.grad = None if name in bare else torch.zeros_like(parameter)
        for name, value in average.items():
            trainer.average.weights[name].copy_(sharding.like(value, parameters[name]))
    trainer.update.restore(optimizer)
    trainer.policy_version = version
    trainer.peak_memory = int(state["peak_memory"])
    trainer.collected = collected
    trainer.collected_for = position_of(_file(trainer), done).rollout if collected else -1


def _file(trainer: Trainer) -> Any:
    return trainer.stage.run.file


def _resumable(plugin: Any) -> bool:
    return callable(getattr(plugin, "state", None)) and callable(getattr(plugin, "restore", None))


def _as_json(table: Mapping[str, Any], who: str) -> Any:
    """A copy that later changes do not reach."""
    try:
        return json.loads(json.dumps(table))
    except (TypeError, ValueError) as error:
        raise HeadwaterError(
            f"{who}: its state cannot be saved; expected tensors, and else what JSON takes: {error}"
        ) from None


def _restore_plugins(run: Run, tables: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    for named in run.named:
        if named.key in tables and _resumable(named.plugin):
            start = f"{named.key}/"
            own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            with blamed(named, "restore"):
                named.plugin.restore({**tables[named.key], **own})


def _check_fit(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Names, shapes and dtypes are those of the run's parameters."""
    odd = sorted(set(found) ^ set(expected))
    if odd:
        raise ValueError(f"{what}: {odd[0]} and {len(odd) - 1} others are not in both")
    for name, tensor in found.items():
        other = expected[name]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            raise ValueError(
                f"{what}: {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {other.dtype} {tuple(other.shape)}"
            )
