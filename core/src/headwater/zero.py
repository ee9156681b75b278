"""DeepSpeed's ZeRO: moments and reduced gradients are shared out, every process has the weights.

DeepSpeed gets the trained parameters and the optimizer, and nothing of the network: the backwards
of an optimizer step, in any engine mode, add up locally in `coalesce_grad_reduction`, whose end
reduces once and leaves each process the mean gradient of its part.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from headwater import processes
from headwater.errors import InputError

MOMENTS = ("exp_avg", "exp_avg_sq")
OURS = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
}
"""Keys of DeepSpeed's configuration that the run file decides."""


def asked_for() -> bool:
    """Whether the launcher asks for it: `accelerate launch --use_deepspeed --zero_stage 2`."""
    return _wanted() and processes.world() > 1


def _wanted() -> bool:
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("1", "true")


def check_installed() -> None:
    """InputError where DeepSpeed is asked for and missing; before accelerate starts with it."""
    if _wanted() and importlib.util.find_spec("deepspeed") is None:
        hint = 'ACCELERATE_USE_DEEPSPEED needs deepspeed: pip install "headwater[deepspeed]"'
        raise InputError("launch", [hint])


def configuration() -> dict[str, Any]:
    """DeepSpeed's configuration as accelerate reads it from its options or the user's file.

    InputError for another stage than 1 or 2, or a key that the run file decides.
    """
    from accelerate import DeepSpeedPlugin

    found: dict[str, Any] = dict(DeepSpeedPlugin().deepspeed_config)
    problems = [
        f"{key} = {found[key]!r}: the run file decides this; leave it out, or write 'auto'"
        for key in sorted(OURS & set(found))
        if found[key] not in ("auto", 1) and not _off(key, found[key])
    ]
    stage = found.get("zero_optimization", {}).get("stage", 0)
    if stage not in (1, 2):
        problems.append(f"stage {stage}: only 1 and 2 are known here; shard weights with FSDP2")
    if problems:
        raise InputError("DeepSpeed's configuration", problems)
    kept = {key: value for key, value in found.items() if key not in OURS}
    return kept | {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True}


def _off(key: str, value: Any) -> bool:
    """A table that is switched off, or to be decided."""
    half = key in ("fp16", "bf16") and isinstance(value, dict)
    return half and value.get("enabled", False) in (False, "auto")


class Zero:
    """An optimizer whose state is shared out over the processes."""

    def __init__(
        self, parameters: Mapping[str, Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        odd = sorted({str(p.dtype) for p in parameters.values()} - {"torch.float32"})
        if odd:
            hint = "DeepSpeed reduces in float32; take [engine] precision for half precision"
            raise InputError("DeepSpeed", [f"trained weights are {', '.join(odd)}: {hint}"])
        if not isinstance(optimizer, torch.optim.AdamW):
            raise InputError("[optimizer] states", ['"8bit" does not go with DeepSpeed'])
        self.parameters = parameters
        self.engine = _engine(parameters, optimizer)
        self.block = ExitStack()

    def begin(self) -> None:
        """Backwards from here on add up locally."""
        self.engine.optimizer.zero_grad(set_to_none=True)
        self.block.enter_context(self.engine.coalesce_grad_reduction())

    def reduce(self) -> None:
        """One reduction; a skipped update's gradient is overwritten by the next."""
        self.block.close()

    def norm(self) -> float:
        """Over the parts of all processes."""
        squares = [torch.linalg.vector_norm(g.double()).square() for g in self._gradients()]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
        return float(processes.total_(total.to(self._device())).sqrt())

    def apply(self, scale: float, rate: float) -> None:
        """Step with the gradient times `scale`."""
        torch._foreach_mul_(self._gradients(), scale)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.engine.step()

    def moments(self) -> dict[str, Tensor]:
        """`KEY/PARAMETER`, whole, as one process keeps them; nothing before the first update."""
        from deepspeed.utils import safe_get_full_optimizer_state

        found = list(self.engine.optimizer.optimizer.state.values())
        if not found:
            return {}
        out = {}
        for name, parameter in self.parameters.items():
            out[f"step/{name}"] = found[0]["step"].clone()
            for key in MOMENTS:
                out[f"{key}/{name}"] = safe_get_full_optimizer_state(parameter, key)
        return out

    def restore(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Weights are in place: copy them to this process's part, and the moments' part too."""
        shared = self.engine.optimizer
        shared.refresh_fp32_params()
        (part,) = shared.single_partition_of_fp32_groups
        shared.optimizer.state.clear()
        shared._hp_optimizer_states_linked = False
        if not entries:
            return
        state: dict[str, Tensor] = {key: torch.zeros_like(part) for key in MOMENTS}
        for name, parameter in self.parameters.items():
            mapping: Any = vars(parameter)["_hp_mapping"]  # DeepSpeed's: which part is here
            if mapping is None:  # another process's
                continue
            mine, there = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
            for key in MOMENTS:
                found = entries[name][key].flatten().narrow(0, mine.start, mine.numel)
                state[key].narrow(0, there.start, there.numel).copy_(found)
        step = next(iter(entries.values()))["step"]
        shared.optimizer.state[part] = {"step": step.clone(), **state}
        shared._lazy_init_hp_params_optimizer_state()

    def _gradients(self) -> list[Tensor]:
        found: dict[int, list[Tensor]] = self.engine.optimizer.averaged_gradients
        return [gradient for group in found.values() for gradient in group or ()]

    def _device(self) -> torch.device:
        return next(iter(self.parameters.values())).device


def _engine(parameters: Mapping[str, Parameter], optimizer: torch.optim.Optimizer) -> Any:
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.WARNING)
    holder = nn.ParameterList(parameters.values())
    engine, *_ = deepspeed.initialize(
        model=holder, optimizer=optimizer, config=configuration(), dist_init_required=False
    )
    if not hasattr(engine, "coalesce_grad_reduction"):
        raise InputError("launch", [f"deepspeed {deepspeed.__version__} is too old; take 0.19.8"])
    return engine
