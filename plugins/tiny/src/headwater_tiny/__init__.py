"""A small text-to-image model, its prompts, rewards and detector. Imports nothing."""
