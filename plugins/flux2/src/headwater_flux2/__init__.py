"""FLUX.2 Klein for Headwater."""
