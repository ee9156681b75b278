"""What backbones of released diffusers models have in common.

A family's plugin says how its prompts are encoded, how its network is called, and how its latents
are shaped and decoded; loading, freezing, LoRA, guidance, the embedding cache and export are here.
"""

from headwater.families.backbone import FamilyBackbone
from headwater.families.encoded import Encoded

__all__ = ["Encoded", "FamilyBackbone"]
