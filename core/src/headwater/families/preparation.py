"""How a family's network is trained and run, by the settings of its backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import Module

from headwater import adapters

if TYPE_CHECKING:
    from headwater.families.backbone import FamilyBackbone


def prepared(backbone: FamilyBackbone, network: Any, seed: int) -> Module:
    """Freeze, add what is trained, and set how the network runs. No dropout in training."""
    network.eval()
    if backbone.train == "lora":
        targets = backbone.lora_targets()
        adapters.train_lora(
            network, backbone.rank, backbone.alpha, targets, seed, backbone.unused()
        )
    else:
        adapters.train_full(network, backbone.unused())
    if backbone.checkpointing:
        network.enable_gradient_checkpointing()
        # diffusers checkpoints only in training mode, and no family here has dropout.
        network.train()
    if backbone.attention:
        network.set_attention_backend(backbone.attention)
    if backbone.compile:
        network.compile()
    out: Module = network
    return out
