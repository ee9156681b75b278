"""Classical gradient estimators."""

from headwater_classics.backpropagation import Bptt, DraftK, Exact
from headwater_classics.draft_lv import DraftLV
from headwater_classics.posterior import DRTune, ReFL

__all__ = ["Bptt", "DRTune", "DraftK", "DraftLV", "Exact", "ReFL"]
