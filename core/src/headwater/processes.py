"""The processes of a run. accelerate starts them; one alone is no special case.

Every process composes the same run, draws its share of the samples and does the same evaluations
in the same order. Whatever decides, decides on numbers that all of them have. The first process
alone writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headwater.errors import HeadwaterError, InputError

T = TypeVar("T")


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if world() > 1 else 0


def first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def gathered(value: T) -> list[T]:
    """The value of every process, by rank."""
    if world() == 1:
        return [value]
    out: list[Any] = [None] * world()
    dist.all_gather_object(out, value)
    return out


def leave() -> None:
    """End the group in order: a process that exits within it makes the others abort."""
    if world() > 1:
        dist.barrier()
        dist.destroy_process_group()


def anywhere(flag: object) -> bool:
    """Whether it is true in any process."""
    return any(gathered(bool(flag)))


def everywhere(flag: object) -> bool:
    """Whether it is true in all processes."""
    return all(gathered(bool(flag)))


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their mean over the processes: one all-reduce for each dtype."""
    if world() == 1:
        return
    for dtype in sorted({t.dtype for t in tensors}, key=str):
        same = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        dist.all_reduce(flat)
        flat /= world()
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


def total_(tensor: Tensor) -> Tensor:
    """Add up a tensor over the processes, in place."""
    if world() > 1:
        dist.all_reduce(tensor)
    return tensor


def mean_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Mean over the processes of every metric, over those that have it."""
    every = gathered(dict(metrics))
    names = dict.fromkeys(name for found in every for name in found)
    values = {name: [found[name] for found in every if name in found] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}


def whole_rows(rows: Tensor, positions: Sequence[int], count: int) -> Tensor:
    """(count, ...) rows of all processes in their common order; `positions` are this one's."""
    if world() == 1:
        return rows
    out = rows.new_zeros(count, *rows.shape[1:])
    for where, values in gathered((list(positions), rows.cpu())):
        out[where] = values.to(out.device)
    return out


def same(value: str, what: str) -> None:
    """InputError where processes differ in something they must share."""
    if len(set(gathered(value))) > 1:
        raise InputError("launch", [f"the processes differ in {what}; give all the same files"])


def on_first(work: Callable[[], T]) -> T:
    """Run `work` in the first process and give its result to all.

    What it raises is raised there; the others leave with the same exit code and say nothing.
    """
    if world() == 1:
        return work()
    box: list[tuple[Any, int | None]] = [(None, 1)]
    try:
        if first():
            box = [(work(), None)]
    except HeadwaterError as error:
        box = [(None, error.exit_code)]
        raise
    finally:
        dist.broadcast_object_list(box, src=0)
        if box[0][1] is not None:
            leave()
    result, code = box[0]
    if code is not None:
        raise SystemExit(code)
    return result
