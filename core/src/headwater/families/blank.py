"""Modules and embeddings on the meta device: shapes without data, for plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def module(config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """The frozen diffusers module of a configuration, without weights."""
    import diffusers

    cls = getattr(diffusers, config["_class_name"])
    known = {key: value for key, value in config.items() if not key.startswith("_")}
    with torch.device("meta"), _default(dtype):
        made = cls.from_config(known)
    return made.requires_grad_(requires_grad=False).eval()


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def embeddings(
    shapes: Mapping[str, tuple[int, ...]], count: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """A batch of `count` embeddings. A mask is of ones and real: code may ask for its values."""
    return {
        name: torch.ones(count, *shape, dtype=torch.long)
        if name == "mask"
        else torch.empty(count, *shape, dtype=dtype, device="meta")
        for name, shape in shapes.items()
    }
