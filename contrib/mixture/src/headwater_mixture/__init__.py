"""A Gaussian mixture of small pictures as a text-to-image model: every marginal is known."""
