"""FlowBP: surrogate trajectories with a few active steps."""

from headwater_flowbp.estimators import Bridge, Lagrange, Sparse
from headwater_flowbp.free import FreeSurrogate

__all__ = ["Bridge", "FreeSurrogate", "Lagrange", "Sparse"]
