"""Weights for use elsewhere, and the proof that they can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headwater.errors import HeadwaterError

LORA_FILE = "pytorch_lora_weights.safetensors"


def export_lora(pipeline_class: Any, network: Any, path: Path) -> None:
    """Write a LoRA that the pipeline's `load_lora_weights` loads, rank and alpha kept.

    Raises HeadwaterError where what was read back is not what was written.
    """
    from peft import get_peft_model_state_dict

    layers = {name: t.detach().cpu() for name, t in get_peft_model_state_dict(network).items()}
    settings = network.peft_config["default"].to_dict()
    pipeline_class.save_lora_weights(
        path, transformer_lora_layers=layers, transformer_lora_adapter_metadata=settings
    )
    found, metadata = pipeline_class.lora_state_dict(path, return_lora_metadata=True)
    for name, tensor in layers.items():
        again = found.get(f"transformer.{name}")
        if again is None or not torch.equal(again, tensor):
            raise HeadwaterError(f"{path / LORA_FILE}: {name} was not read back as written")
    for key in ("r", "lora_alpha"):
        if metadata.get(f"transformer.{key}") != settings[key]:
            raise HeadwaterError(f"{path / LORA_FILE}: {key} was not read back as written")


def export_full(network: Any, path: Path) -> None:
    """Write the network as a diffusers folder `transformer/`, and read it back."""
    folder = path / "transformer"
    network.save_pretrained(folder)
    again = type(network).from_pretrained(folder, dtype=next(network.parameters()).dtype)
    written = network.state_dict()
    for name, tensor in again.state_dict().items():
        if not torch.equal(tensor, written[name].cpu()):
            raise HeadwaterError(f"{folder}: {name} was not read back as written")
