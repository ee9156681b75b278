"""The model: an SD3 transformer on 4 x 4 x 16 latents, its text embedder, its autoencoder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Generator, Tensor, nn

from headwater_tiny.autoencoder import CHANNELS, PatchAutoencoder
from headwater_tiny.draw import SIZE
from headwater_tiny.text import TextEmbedder, tokenize

if TYPE_CHECKING:
    from diffusers import SD3Transformer2DModel

LATENT = (CHANNELS, 4, 4)


@attrs.frozen
class Config:
    """Sizes of the model, and the sigma grid it samples best on."""

    layers: int = 4
    heads: int = 2
    head_dim: int = 64
    text_dim: int = 128
    pooled_dim: int = 128
    shift: float = 1.0
    """Sigmas are linear from 1 to 0, then s' = shift s / (1 + (shift - 1) s)."""


def build_transformer(config: Config) -> SD3Transformer2DModel:
    """The diffusers class, on 16 tokens of one latent pixel each; no dropout in it."""
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=LATENT[1],
        patch_size=1,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=config.layers,
        attention_head_dim=config.head_dim,
        num_attention_heads=config.heads,
        joint_attention_dim=config.text_dim,
        caption_projection_dim=config.heads * config.head_dim,
        pooled_projection_dim=config.pooled_dim,
        pos_embed_max_size=LATENT[1],
        qk_norm="rms_norm",
    )


class TinyModel(nn.Module):
    """Transformer, text embedder and autoencoder from one config."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = build_transformer(config)
        self.text = TextEmbedder(config.text_dim, config.pooled_dim)
        self.autoencoder = PatchAutoencoder()

    def velocity(self, x: Tensor, sigma: Tensor, states: Tensor, pooled: Tensor) -> Tensor:
        """Unguided velocity eps - x_data, (B, 16, 4, 4).

        x: (B, 16, 4, 4). sigma: (B,). states: (B, 12, d). pooled: (B, d).
        """
        return self.transformer(
            hidden_states=x,
            encoder_hidden_states=states,
            pooled_projections=pooled,
            timestep=sigma * 1000,
            return_dict=False,
        )[0]

    def encode_text(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Word states (B, 12, d) and pooled vectors (B, d)."""
        return self.text(tokenize(texts).to(self.text.place.device))


def sigma_grid(steps: int, shift: float) -> Tensor:
    """(N + 1,) float32, from 1 to 0: linear, then shifted towards the noise."""
    s = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return (shift * s / (1 + (shift - 1) * s)).float()


def noise(seeds: list[int] | tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, 16, 4, 4), each sample from its own seed, drawn in float32 and then cast."""
    rows = [torch.randn(LATENT, generator=Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows).to(dtype)


@torch.no_grad()
def sample(
    model: TinyModel,
    texts: list[str],
    seeds: list[int],
    steps: int = 20,
    guidance: float = 2.0,
) -> Tensor:
    """Euler samples with classifier-free guidance: images (B, 3, 32, 32)."""
    states, pooled = model.encode_text([*texts, *[""] * len(texts)])
    sigmas = sigma_grid(steps, model.config.shift)
    x = noise(seeds, states.dtype)
    for i in range(steps):
        level = sigmas[i].expand(2 * len(texts))
        v = model.velocity(torch.cat([x, x]), level, states, pooled)
        given, empty = v.chunk(2)
        x = x - (sigmas[i] - sigmas[i + 1]) * (empty + guidance * (given - empty))
    return model.autoencoder.decode(x)


def load_model(dtype: torch.dtype = torch.float32, config: Config | None = None) -> TinyModel:
    """The trained model on the CPU, in evaluation mode, stored float16 cast to `dtype`."""
    model = TinyModel(config or Config())
    model.load_state_dict(read_weights("flow.safetensors"))
    return model.eval().to(dtype)


def read_weights(name: str) -> Mapping[str, Tensor]:
    """Tensors of a shipped weight file, in float32."""
    from safetensors.torch import load

    data = resources.files("headwater_tiny").joinpath("weights", name).read_bytes()
    return {key: value.float() for key, value in load(data).items()}


def facts(config: Config) -> dict[str, Any]:
    """Parameter counts and shapes from configuration alone, on the meta device."""
    with torch.device("meta"):
        model = TinyModel(config)
    parts = {"transformer": model.transformer, "text": model.text, "decoder": model.autoencoder}
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    return {"image": (3, SIZE, SIZE), "latent": LATENT, "parameters": counts}
