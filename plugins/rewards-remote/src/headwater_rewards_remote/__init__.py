"""Rewards over HTTP: the command `headwater serve-reward`, and the reward `remote`."""
