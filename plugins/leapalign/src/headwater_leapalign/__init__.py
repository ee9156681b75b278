"""LeapAlign: leaps along a cached trajectory with a discounted nested gradient."""

from headwater_leapalign.estimator import LeapAlign

__all__ = ["LeapAlign"]
