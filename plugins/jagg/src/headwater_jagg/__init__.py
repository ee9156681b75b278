"""JAGG: the policy gradient of W steps through a few of them (arXiv 2607.17572)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater_jagg.estimator import Jagg

__all__ = ["Jagg"]


def __getattr__(name: str) -> Any:
    """Import the estimator at its first use: `headwater probe --help` imports no torch."""
    if name != "Jagg":
        raise AttributeError(f"module 'headwater_jagg' has no attribute {name!r}")
    from headwater_jagg.estimator import Jagg

    return Jagg
