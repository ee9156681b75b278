"""FLUX.1 for Headwater."""
