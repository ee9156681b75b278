"""The optimizer's side of a step: schedule, clipping, moving average, guards."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from headwater import processes, sharding
from headwater.errors import GuardError, HeadwaterError, InputError
from headwater.tables import GuardTable, Optimizer

HISTORY = 50
"""Gradient norms the guard's median is taken over."""


def learning_rate(table: Optimizer, step: int, steps: int) -> float:
    """Rate of optimizer step `step`, counted from 0, of `steps`."""
    if step < table.warmup:
        return table.lr * (step + 1) / table.warmup
    if table.schedule == "constant":
        return table.lr
    done = (step - table.warmup) / max(1, steps - table.warmup)
    return table.lr * 0.5 * (1 + math.cos(math.pi * done))


def make_optimizer(parameters: Mapping[str, Parameter], table: Optimizer) -> torch.optim.Optimizer:
    """AdamW. InputError where its 8-bit states are asked for and cannot be had."""
    settings: dict[str, Any] = {
        "lr": table.lr,
        "betas": table.betas,
        "weight_decay": table.weight_decay,
    }
    if table.states == "full":
        return torch.optim.AdamW(list(parameters.values()), **settings)
    where = "[optimizer] states"
    if any(sharding.is_shard(parameter) for parameter in parameters.values()):
        raise InputError(where, ['"8bit" does not go with sharded weights; take "full"'])
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        hint = f'"8bit" needs bitsandbytes (pip install "headwater[8bit]"): {error}'
        raise InputError(where, [hint]) from error
    made: torch.optim.Optimizer = AdamW8bit(list(parameters.values()), **settings)
    return made


class Average:
    """Exponential moving average of the trained weights. A decay of 0 keeps none."""

    def __init__(self, parameters: Mapping[str, Parameter], decay: float) -> None:
        self.parameters = parameters
        self.decay = decay
        self.weights = {n: p.detach().clone() for n, p in parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self) -> None:
        """After an applied update."""
        if self.decay:
            live = [sharding.local(self.parameters[name].detach()) for name in self.weights]
            kept = [sharding.local(value) for value in self.weights.values()]
            torch._foreach_lerp_(kept, live, 1 - self.decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the network has the averaged weights."""
        if not self.decay:
            yield
            return
        with swapped(self.parameters, self.weights):
            yield


@contextmanager
def swapped(parameters: Mapping[str, Parameter], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it the parameters have other values."""
    live = {name: parameters[name].detach().clone() for name in weights}
    _assign(parameters, weights)
    try:
        yield
    finally:
        _assign(parameters, live)


@torch.no_grad()
def _assign(parameters: Mapping[str, Parameter], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


class Guard:
    """Skips updates whose gradient norm is not finite or explodes; stops after too many."""

    def __init__(self, table: GuardTable) -> None:
        self.table = table
        self.norms: deque[float] = deque(maxlen=HISTORY)
        self.in_a_row = 0
        self.skipped = 0

    def reason_to_skip(self, norm: float) -> str:
        """Judge a gradient norm; an empty text lets the update through."""
        reason = ""
        if not math.isfinite(norm):
            reason = f"gradient norm is {norm}"
        elif self.norms and 0 < median(self.norms) * self.table.norm_ratio < norm:
            reason = (
                f"gradient norm {norm:.3g} is over {self.table.norm_ratio:g} times the running "
                f"median {median(self.norms):.3g}"
            )
        if not reason:
            self.norms.append(norm)
            self.in_a_row = 0
            return ""
        self.in_a_row += 1
        self.skipped += 1
        return reason

    def state(self) -> dict[str, Any]:
        """What later judgements need of earlier ones, as JSON takes it."""
        return {"norms": list(self.norms), "in_a_row": self.in_a_row, "skipped": self.skipped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        norms = [float(norm) for norm in state["norms"]]
        self.in_a_row, self.skipped = int(state["in_a_row"]), int(state["skipped"])
        self.norms = deque(norms, maxlen=HISTORY)

    def check(self, reason: str) -> None:
        """GuardError after `max_skips` skips in a row."""
        if self.in_a_row >= self.table.max_skips:
            raise GuardError(f"{self.in_a_row} updates in a row were skipped; the last: {reason}")


class GradientCheck:
    """Every trained tensor gets a gradient, and soon one that is not zero.

    A fresh LoRA's A matrices have an exactly zero gradient at the first update, since B is
    zero; by the end of the second applied update none may be.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self.silent = set(parameters)
        self.applied = 0

    def after_backward(self, *, upstream_is_zero: bool) -> None:
        """Call before each update; costs nothing once every tensor was seen."""
        if not self.silent or upstream_is_zero or self.applied >= 2:
            return
        missing = [n for n, p in self.parameters.items() if p.grad is None]
        if missing:
            raise HeadwaterError(_unreached(missing, "no gradient"))
        grads = ((name, self.parameters[name].grad) for name in sorted(self.silent))
        heard = {n for n, grad in grads if grad is not None and bool(sharding.local(grad).any())}
        self.silent -= set().union(*processes.gathered(heard))

    def state(self) -> dict[str, Any]:
        """What is still to be seen, as JSON takes it."""
        return {"silent": sorted(self.silent), "applied": self.applied}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.silent, self.applied = set(map(str, state["silent"])), int(state["applied"])

    def after_update(self) -> None:
        """Count an applied update with a gradient that is not zero."""
        self.applied += 1
        if self.applied == 2 and self.silent:
            raise HeadwaterError(_unreached(sorted(self.silent), "only a zero gradient"))


def _unreached(names: list[str], what: str) -> str:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"{len(names)} trained tensors received {what}: {shown}. Either they are not part of the "
        f"network's forward and should not be trained, or the graph to them is cut."
    )
