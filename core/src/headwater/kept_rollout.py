"""A collected rollout in a checkpoint that falls between two of its updates.

It cannot be drawn again: the weights that made it have changed since. What the run file and the
draws say is formed anew, the rest is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from headwater.collection import Collected
from headwater.faults import CheckedDynamics
from headwater.geometry import micro_batches, position_of, rollout_draws, schedule_of
from headwater.stage import Stage
from headwater.types import Credit, Rollout


def pack(items: list[Collected]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """JSON and tensors of a collected rollout."""
    records: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for number, item in enumerate(items):
        rollout, credit = item.rollout, item.credit
        found = {name: tensor for name, tensor in _tensors(item) if tensor is not None}
        tensors |= {f"{number}/{name}": tensor for name, tensor in found.items()}
        record = {
            "version": rollout.policy_version,
            "dropped": item.dropped,
            "loss": credit.loss,
            "count": credit.count,
            "on_cpu": [name for name, tensor in found.items() if tensor.device.type == "cpu"],
        }
        records.append(record)
    return {"micro_batches": records}, tensors


def unpack(
    stage: Stage, step: int, record: Mapping[str, Any], tensors: Mapping[str, Tensor], device: Any
) -> list[Collected]:
    """The collected rollout that optimizer step `step` uses. ValueError where it does not fit."""
    file, records = stage.run.file, record["micro_batches"]
    position = position_of(file, step)
    draws = rollout_draws(stage.run, position.rollout)
    batches = micro_batches(draws, file.prompts.micro_batch)
    if len(records) != len(batches):
        raise ValueError(f"rollout: {len(records)} micro-batches, expected {len(batches)}")
    schedule = schedule_of(stage.run, position.first)
    out = []
    for number, (entry, cut) in enumerate(zip(records, batches, strict=True)):
        start = f"{number}/"
        own = {
            name: tensor if name in entry["on_cpu"] else tensor.to(device)
            for name, tensor in _under(tensors, start)
        }
        batch = stage.batch(cut, int(entry["version"]), schedule=schedule)
        latents, sigmas = own["latents"], own["sigmas"]
        if latents.shape[:2] != (len(sigmas), len(cut)) or len(sigmas) != batch.steps + 1:
            raise ValueError(f"rollout: latents of shape {tuple(latents.shape)}")
        rollout = Rollout(
            batch=batch,
            latents=latents,
            sigmas=sigmas,
            velocities=own.get("velocities"),
            log_probs=own.get("log_probs"),
            policy_version=batch.policy_version,
            dynamics=CheckedDynamics(stage.run.dynamics),
            references={int(step): v for step, v in _under(own, "reference/")},
        )
        credit = Credit(
            advantages=own.get("advantages"),
            kept=own.get("kept"),
            loss=float(entry["loss"]),
            count=int(entry["count"]),
        )
        rewards = dict(_under(own, "reward/"))
        if set(rewards) != set(stage.run.rewards):
            raise ValueError(f"rollout: rewards {', '.join(rewards)}")
        out.append(Collected(cut[0].part, rollout, rewards, credit, int(entry["dropped"])))
    return out


def _tensors(item: Collected) -> Iterator[tuple[str, Tensor | None]]:
    rollout, credit = item.rollout, item.credit
    assert credit.endpoint_gradient is None, "an endpoint upstream keeps no rollout"
    yield "latents", rollout.latents
    yield "sigmas", rollout.sigmas
    yield "velocities", rollout.velocities
    yield "log_probs", rollout.log_probs
    yield "advantages", credit.advantages
    yield "kept", credit.kept
    for step, velocity in rollout.references.items():
        yield f"reference/{step}", velocity
    for key, values in item.rewards.items():
        yield f"reward/{key}", values


def _under(tensors: Mapping[str, Tensor], start: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors whose name begins so, by the rest of it."""
    return ((n.removeprefix(start), t) for n, t in tensors.items() if n.startswith(start))
