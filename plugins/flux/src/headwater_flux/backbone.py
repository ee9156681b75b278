"""The backbone `flux`: FLUX.1 from a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater.families import FamilyBackbone
from headwater.families.embeddings import Embedding
from headwater.families.schedules import (
    latent_size,
    linear_mu,
    packed,
    scheduler_sigmas,
    unpacked,
)
from headwater.types import Request
from headwater.validators import in_range


@attrs.define(eq=False)
class Flux(FamilyBackbone):
    """FLUX.1: embedded guidance, latents (C, H / 8, W / 8), packed only inside the network."""

    guidance_kind: ClassVar[Literal["embedded"]] = "embedded"
    pipelines: ClassVar[tuple[str, ...]] = ("FluxPipeline",)
    encoders: ClassVar[tuple[str, ...]] = (
        *("tokenizer", "text_encoder"),
        *("tokenizer_2", "text_encoder_2"),
    )
    package: ClassVar[str] = "headwater_flux"
    targets: ClassVar[tuple[str, ...]] = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        *("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
    )
    paper: ClassVar[str] = "arXiv 2506.15742"

    max_length: int = attrs.field(default=512, validator=in_range(1, 512))
    """Tokens of the T5 encoder."""

    def made_with(self) -> Mapping[str, str]:
        """The T5 length."""
        return {"maximum length": str(self.max_length)}

    def guidance_problems(self, guidance: float) -> list[str]:
        """A distilled model has no place for a guidance scale."""
        if self.config("transformer").get("guidance_embeds") or guidance in (0, 1):
            return []
        return [f"this model is distilled and takes no guidance; [rollout] guidance is {guidance}"]

    def embed(self, pipeline: Any, texts: list[str]) -> list[Embedding]:
        """Token states (L, 4096) and pooled states (768,) of each prompt."""
        states, pooled, _ = pipeline.encode_prompt(
            prompt=texts, prompt_2=None, max_sequence_length=self.max_length
        )
        return [{"states": s, "pooled": p} for s, p in zip(states, pooled, strict=True)]

    def longest(self) -> Mapping[str, tuple[int, ...]]:
        """Prompts are padded to the maximum length."""
        config = self.config("transformer")
        return {
            "states": (self.max_length, config["joint_attention_dim"]),
            "pooled": (config["pooled_projection_dim"],),
        }

    def evaluate(self, x: Tensor, sigma: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Time is sigma; positions are (0, row, column) of the tokens, zeros for the text."""
        h, w = x.shape[2], x.shape[3]
        guidance = None
        if self.config("transformer").get("guidance_embeds"):
            guidance = torch.full((len(x),), self._guidance, device=x.device)
        tokens = self.network(
            hidden_states=packed(x),
            timestep=sigma,
            guidance=guidance,
            pooled_projections=text["pooled"],
            encoder_hidden_states=text["states"],
            txt_ids=x.new_zeros(text["states"].shape[1], 3),
            img_ids=positions(h // 2, w // 2).to(x),
            return_dict=False,
        )[0]
        return unpacked(tokens, h, w)

    def decode_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Undo the latents' scale and shift, then decode."""
        z = latents / vae.config.scaling_factor + vae.config.shift_factor
        images: Tensor = vae.decode(z, return_dict=False)[0]
        return images

    def shape(self, request: Request) -> tuple[int, ...]:
        """(C, H / f, W / f) for a decoder of factor f."""
        factor = 2 ** (len(self.config("vae")["block_out_channels"]) - 1)
        height, width = latent_size(request, factor, 2 * factor, "flux")
        return self.config("transformer")["in_channels"] // 4, height, width

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32, shifted by the number of tokens."""
        config = self.config("scheduler")
        tokens = shape[1] * shape[2] // 4
        return scheduler_sigmas(config, steps, linear_mu(config, tokens))


def positions(rows: int, columns: int) -> Tensor:
    """(rows * columns, 3) of (0, row, column)."""
    grid = torch.zeros(rows, columns, 3)
    grid[..., 1] = torch.arange(rows)[:, None]
    grid[..., 2] = torch.arange(columns)
    return grid.view(-1, 3)
