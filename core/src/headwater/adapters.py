"""LoRA or full training, for any backbone: what is trained, and the model before training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.nn import Module, Parameter


def train_lora(
    network: Module,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    seed: int,
    unused: Sequence[str] = (),
) -> Mapping[str, Parameter]:
    """Freeze `network` and put a LoRA of `rank`, scaled by alpha / rank, on its `targets`.

    targets: ends of module names, as in peft. unused: names of modules that do not reach the
    output, and get none; names of single parameters are passed over. No dropout: the policy must
    be one function.
    Adapters are at least float32. A fresh LoRA changes nothing (B = 0).
    """
    from peft import LoraConfig, inject_adapter_in_model

    network.requires_grad_(requires_grad=False)
    excluded = sorted({name for name, _ in network.named_modules()} & {*unused})
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(targets),
        exclude_modules=excluded or None,
        lora_dropout=0.0,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, network)
    for parameter in trainable(network).values():
        if parameter.element_size() < 4:
            parameter.data = parameter.data.float()
    return trainable(network)


def train_full(network: Module, unused: Sequence[str] = ()) -> Mapping[str, Parameter]:
    """Train every parameter of `network`, but for those that do not reach the output.

    unused: names of such modules, or of single parameters.
    """
    for name, parameter in network.named_parameters():
        inside = name.startswith(tuple(f"{module}." for module in unused))
        parameter.requires_grad_(not inside and name not in unused)
    return trainable(network)


def trainable(network: Module) -> dict[str, Parameter]:
    """Parameters that require a gradient, by name."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


@contextmanager
def adapters_off(network: Module) -> Iterator[None]:
    """Within it `network` is the model before training. ValueError without an adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in network.modules() if isinstance(module, BaseTunerLayer)]
    if not layers:
        raise ValueError(
            "full training has no adapter to switch off, hence no reference model; "
            'use train = "lora", or keep a copy'
        )
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)
