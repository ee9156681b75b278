"""Qwen-Image for Headwater."""
