"""What a run holds in memory, from configuration alone.

The run's own code is executed on the meta device, where tensors have shapes and no data: one
decoding with its gradient, and one backward of each kind of group in every engine mode. What
they would hold at most is counted storage by storage; nothing is fitted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from headwater import meta_stages
from headwater.composition import Named, Run
from headwater.engine import MODES, Mode
from headwater.flops import of_velocity
from headwater.live_bytes import bytes_of
from headwater.protocols import LoadContext
from headwater.types import Batch, Prompt, Request, Rollout, Surrogate

QUANTISED, BLOCK = 4096, 256
"""bitsandbytes: elements from which a tensor's moments take 8 bits, and elements a scale."""


@attrs.frozen
class Footprint:
    """Bytes of one process that holds the whole model."""

    parameters: Mapping[str, int]
    """Numbers of `trainable` and `frozen` parameters of the network."""
    weights: Mapping[str, int]
    """component: bytes. Text encoders are freed before training and not among them."""
    gradients: int
    optimizer: int
    average: int
    """The moving average, and the live weights kept aside while it is evaluated."""
    reference: int
    """A copy of the weights before training."""
    rollout: int
    """Cached states and velocities: all of a rollout for a per-step upstream, else one
    micro-batch."""
    conditioning: int
    sampling: int
    """Most activations of one velocity without graph."""
    decoding: int
    """Most activations of decoder and rewards, with their graph for an endpoint upstream."""
    engine: Mapping[Mode, int]
    """Mode: most activations of the engine's forwards and backwards."""
    autocast: int
    """bfloat16 copies of the float32 weights, which a graph keeps under mixed precision."""
    flops: Mapping[str, int]
    """Of a sample's velocity: `forward`, guidance included, and `backward`."""
    uncounted: Sequence[str]
    """Rewards whose weights and graph are not among these numbers."""

    @property
    def resident(self) -> int:
        """What is held all the time."""
        parts = (self.gradients, self.optimizer, self.average, self.reference, self.rollout)
        return sum(self.weights.values()) + sum(parts) + self.conditioning

    def peak(self, mode: Mode) -> int:
        """Most bytes at once in an engine mode."""
        engine = self.autocast + max(self.sampling, self.engine[mode])
        return self.resident + max(self.decoding, engine)


def footprint(
    run: Run, surrogates: Sequence[Surrogate], modes: Sequence[Mode] = MODES
) -> Footprint | None:
    """Memory of a run; None where its backbone cannot be built without weights.

    surrogates: planned ones, on samples of any size; their groups and copies are read.
    modes: those to count; a large network takes seconds for each.
    """
    if not getattr(run.backbone.plugin, "loads_on_meta", False):
        return None
    file = run.file
    per_step = run.algorithm.plugin.upstream == "per-step"
    context = LoadContext(device="meta", guidance=file.rollout.guidance, seed=file.seed)
    backbone = _loaded(run.backbone, context)
    mixed = file.engine.precision == "bfloat16" and backbone.dtype == "float32"
    network = _loaded(run.backbone, context, dtype="bfloat16") if mixed else backbone
    copies = max(len(s.rollout.batch) for s in surrogates)
    size = min(file.prompts.micro_batch, _samples(run)) * copies
    rollout = _rollout(backbone, run, size)
    lower = _rollout(network, run, size) if mixed else rollout
    rewards = {
        key: _loaded(named, context)
        for key, named in run.rewards.items()
        if getattr(named.plugin, "loads_on_meta", not hasattr(named.plugin, "load"))
        and (named.plugin.differentiable or per_step)
    }
    trained = bytes_of(backbone.trainable())
    held = file.prompts.per_step * file.prompts.group * file.algorithm.core["updates"]
    samples = held if per_step else min(file.prompts.micro_batch, _samples(run))
    kept_on_cpu = per_step and file.rollout.keep == "cpu"
    reference = getattr(run.algorithm.plugin, "reference_model", "none")
    return Footprint(
        parameters=_counts(backbone),
        weights={**_weights(backbone), **{f"reward.{k}": _held(r) for k, r in rewards.items()}},
        gradients=trained,
        optimizer=_moments(backbone.trainable(), file.optimizer.states),
        average=2 * trained if file.optimizer.ema else 0,
        reference=trained if reference == "copy" else 0,
        rollout=0 if kept_on_cpu else _cached(rollout, run) // size * samples,
        conditioning=_conditioning(rollout.batch.conditioning) // size * samples,
        sampling=meta_stages.sampling(network, lower),
        decoding=meta_stages.decoding(backbone, rollout, rewards, graph=not per_step),
        engine=meta_stages.engine(network, run, lower, surrogates, modes),
        autocast=bytes_of(dict(network.network.named_parameters())) if mixed else 0,
        flops=dict(zip(("forward", "backward"), of_velocity(network, lower), strict=True)),
        uncounted=tuple(key for key in run.rewards if key not in rewards),
    )


def _loaded(named: Named, context: LoadContext, **settings: Any) -> Any:
    """A copy of a plugin, with other settings, loaded; the run's own stays as it is."""
    plugin = copy.copy(named.plugin)
    for key, value in settings.items():
        object.__setattr__(plugin, key, value)
    if hasattr(plugin, "load"):
        plugin.load(context)
    return plugin


def _moments(parameters: Mapping[str, Tensor], states: str) -> int:
    """Bytes of AdamW's two moments."""
    if states == "full":
        return 2 * bytes_of(parameters)
    sizes = [parameter.numel() for parameter in parameters.values()]
    return sum(2 * (n + 4 * -(-n // BLOCK)) if n >= QUANTISED else 8 * n for n in sizes)


def _samples(run: Run) -> int:
    """Samples of a part of an optimizer step: a micro-batch is never larger."""
    prompts = run.file.prompts
    return int(prompts.per_step * prompts.group // run.file.estimator.core["draws"])


def _rollout(backbone: Any, run: Run, size: int) -> Rollout:
    table = run.file.rollout
    shape = backbone.shape(Request(table.height, table.width))
    prompts = tuple(run.prompts[:1] or (Prompt(""),)) * size
    batch = Batch(
        prompts=prompts,
        conditioning=backbone.encode(prompts),
        seeds=(0,) * size,
        group_ids=(0,) * size,
        height=table.height,
        width=table.width,
        steps=table.steps,
    )
    dtype = torch.float64 if getattr(backbone, "dtype", "") == "float64" else torch.float32
    states = torch.empty(table.steps + 1, size, *shape, dtype=dtype, device="meta")
    sigmas = backbone.sigmas(table.steps, shape)
    return Rollout(batch, states, sigmas, torch.empty_like(states[:-1]))


def _counts(backbone: Any) -> dict[str, int]:
    trainable = sum(p.numel() for p in backbone.trainable().values())
    every = sum(p.numel() for p in backbone.network.parameters())
    return {"trainable": trainable, "frozen": every - trainable}


def _weights(backbone: Any) -> dict[str, int]:
    """Bytes of the backbone's modules, by the names of the fields that hold them."""
    out: dict[str, int] = {}
    seen: set[int] = set()
    for name, module in _modules(backbone):
        tensors = {f"{k}": v for k, v in module.state_dict(keep_vars=True).items()}
        fresh = {key: value for key, value in tensors.items() if id(value) not in seen}
        seen.update(id(value) for value in fresh.values())
        if fresh:
            out[name] = bytes_of(fresh)
    return out


def _modules(plugin: Any) -> list[tuple[str, torch.nn.Module]]:
    """The modules that a plugin's fields hold, the trained network first."""
    fields = {field.name: getattr(plugin, field.name) for field in attrs.fields(type(plugin))}
    found = [(k.lstrip("_"), v) for k, v in fields.items() if isinstance(v, torch.nn.Module)]
    return sorted(found, key=lambda pair: pair[0] != "network")


def _held(plugin: Any) -> int:
    return sum(bytes_of(module.state_dict()) for _, module in _modules(plugin))


def _cached(rollout: Rollout, run: Run) -> int:
    """Bytes of the cached states and velocities; bfloat16 states take half."""
    assert rollout.velocities is not None
    half = run.file.rollout.store == "bfloat16"
    states = rollout.latents.numel() * (2 if half else rollout.latents.element_size())
    return int(states + rollout.velocities.numel() * rollout.velocities.element_size())


def _conditioning(value: Any) -> int:
    """Bytes of the tensors a conditioning holds, in its fields or mappings."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(_conditioning(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_conditioning(item) for item in value)
    if attrs.has(type(value)):
        return sum(_conditioning(getattr(value, f.name)) for f in attrs.fields(type(value)))
    return 0


def memory(found: Footprint | None, mode: Mode) -> dict[str, Any] | None:
    """Bytes as `plan` reports them, ready for JSON."""
    if found is None:
        return None
    return {
        **attrs.asdict(found),
        "resident": found.resident,
        "peak": {each: found.peak(each) for each in found.engine},
        "mode": mode,
    }
