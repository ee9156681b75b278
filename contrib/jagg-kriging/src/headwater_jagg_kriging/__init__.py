"""JAGG with nodes where the noise of the rollout asks for them."""
