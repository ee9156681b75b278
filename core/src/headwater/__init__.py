"""Headwater aligns text-to-image flow-matching models with rewards.

The names below are the stable Python interface. Each loads its module at first use, so that
`import headwater` and every `--help` import no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater import engine
    from headwater.composition import compose
    from headwater.discovery import load
    from headwater.errors import HeadwaterError
    from headwater.loop import run
    from headwater.markers import hookimpl

__version__ = "0.1.0"

_HOMES = {
    "load": "headwater.discovery",
    "compose": "headwater.composition",
    "run": "headwater.loop",
    "hookimpl": "headwater.markers",
    "engine": "",
    "HeadwaterError": "headwater.errors",
}

__all__ = ["HeadwaterError", "__version__", "compose", "engine", "hookimpl", "load", "run"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(import_module(home), name) if home else import_module(f"headwater.{name}")
