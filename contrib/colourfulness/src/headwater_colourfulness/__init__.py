"""Colourfulness as a reward: how far an image's colours spread and how strong they are."""
