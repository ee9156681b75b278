"""Opponent colours of images: red against green, yellow against blue."""

from opponent_colours.channels import moments, opponents

__all__ = ["moments", "opponents"]
