"""JAGG: the policy gradient of W steps through a few of them (arXiv 2607.17572)."""

from headwater_jagg.estimator import Jagg

__all__ = ["Jagg"]
