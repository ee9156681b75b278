"""The gradient lab: every estimator's gradient beside the exact one, on the same rollouts."""
