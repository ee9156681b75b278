"""Direct reward gradients: a hinge on differentiable rewards."""

from headwater_direct.algorithm import Direct

__all__ = ["Direct"]
