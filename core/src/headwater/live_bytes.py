"""Bytes of tensors without data: what a computation on the meta device would hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


class LiveBytes(TorchDispatchMode):
    """Counts the storages made within it: those alive now, and the most at once.

    Views and in-place results share their input's storage and count once. A kernel's own
    workspace is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._held: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and count what it made."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((*args, *kwargs.values()))}
        for tensor in _tensors((out,)):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                self._count(storage)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._held:
            return

        def freed(_: object) -> None:
            del self._held[key]
            self.live -= size

        self._held[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


@contextmanager
def fused_attention() -> Iterator[None]:
    """Attention as fused kernels take it: q, k, v, the output and one number a row are kept.

    The meta device would take the plain form, whose score matrix no training run holds. The
    function itself is replaced: a torch-function mode does not reach what a backward recomputes.
    """
    plain = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = _fused
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001 - torch's signature
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001
) -> Tensor:
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
    mask = None if attn_mask is None else attn_mask.to(query.dtype)
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )[0]
    return out


def peak_bytes(work: Callable[[], T]) -> tuple[T, int]:
    """Run `work` on meta tensors; its result, and the most bytes it held beyond what was there."""
    with fused_attention(), LiveBytes() as counter:
        result = work()
    return result, counter.peak


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of named tensors; one that is named twice counts once."""
    return sum({id(t): t.numel() * t.element_size() for t in tensors.values()}.values())


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments or results, those in lists too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
