"""Peak memory of a piece of work.

On a CPU: the largest cumulative sum of the allocator's events, which is exact and repeatable,
unlike resident memory. On a GPU: `max_memory_allocated`.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")


def peak_memory(work: Callable[[], T]) -> tuple[T, int]:
    """Run `work`; returns its result and the bytes it held at most beyond what was there.

    Call it warm, gradients allocated, or first-use buffers are counted.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = work()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return result, peak


def resident_memory() -> int:
    """Most bytes this process has had resident. Reported, never a threshold."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device_memory() -> int:
    """Bytes of the device a run would use: the first GPU's, or the machine's own."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
