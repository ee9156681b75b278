"""Z-Image for Headwater."""
