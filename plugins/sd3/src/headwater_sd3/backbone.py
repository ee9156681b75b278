"""The backbone `sd3`: Stable Diffusion 3 and 3.5 from a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
from torch import Tensor

from headwater.families import FamilyBackbone
from headwater.families.embeddings import Embedding
from headwater.families.schedules import latent_size, scheduler_sigmas
from headwater.types import Request
from headwater.validators import in_range


@attrs.define(eq=False)
class Sd3(FamilyBackbone):
    """Stable Diffusion 3 and 3.5: classifier-free guidance, latents (C, H / 8, W / 8)."""

    guidance_kind: ClassVar[Literal["classifier-free"]] = "classifier-free"
    pipelines: ClassVar[tuple[str, ...]] = ("StableDiffusion3Pipeline",)
    encoders: ClassVar[tuple[str, ...]] = (
        *("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2"),
        *("tokenizer_3", "text_encoder_3"),
    )
    package: ClassVar[str] = "headwater_sd3"
    targets: ClassVar[tuple[str, ...]] = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
    )
    paper: ClassVar[str] = "arXiv 2403.03206"

    schedule: Literal["diffusers", "linear"] = "diffusers"
    """Sigmas: as the pipeline makes them, shifted twice with a tiny last step, or one shift of an
    even grid as most trainers do."""
    max_length: int = attrs.field(default=256, validator=in_range(1, 512))
    """Tokens of the T5 encoder."""

    def unused(self) -> tuple[str, ...]:
        """The last block drops its text output, so the text's queries there reach nothing."""
        last = self.config("transformer")["num_layers"] - 1
        names = ("add_q_proj", "norm_added_q")
        return tuple(f"transformer_blocks.{last}.attn.{name}" for name in names)

    def made_with(self) -> Mapping[str, str]:
        """The T5 length."""
        return {"maximum length": str(self.max_length)}

    def embed(self, pipeline: Any, texts: list[str]) -> list[Embedding]:
        """Token states (L, 4096) and pooled states (2048,) of each prompt."""
        states, _, pooled, _ = pipeline.encode_prompt(
            prompt=texts,
            prompt_2=None,
            prompt_3=None,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_length,
        )
        return [{"states": s, "pooled": p} for s, p in zip(states, pooled, strict=True)]

    def longest(self) -> Mapping[str, tuple[int, ...]]:
        """77 CLIP tokens, then T5's."""
        config = self.config("transformer")
        return {
            "states": (77 + self.max_length, config["joint_attention_dim"]),
            "pooled": (config["pooled_projection_dim"],),
        }

    def evaluate(self, x: Tensor, sigma: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """diffusers' time is 1000 sigma."""
        v: Tensor = self.network(
            hidden_states=x,
            timestep=sigma * 1000,
            encoder_hidden_states=text["states"],
            pooled_projections=text["pooled"],
            return_dict=False,
        )[0]
        return v

    def decode_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Undo the latents' scale and shift, then decode."""
        z = latents / vae.config.scaling_factor + vae.config.shift_factor
        images: Tensor = vae.decode(z, return_dict=False)[0]
        return images

    def shape(self, request: Request) -> tuple[int, ...]:
        """(C, H / f, W / f) for a decoder of factor f."""
        transformer, factor = self.config("transformer"), self._factor
        multiple = factor * transformer["patch_size"]
        most = transformer["pos_embed_max_size"] * multiple
        height, width = latent_size(request, factor, multiple, "sd3")
        if max(request.height, request.width) > most:
            raise ValueError(
                f"this model's positions end at {most} pixels, [rollout] asks for "
                f"{request.height} x {request.width}"
            )
        return transformer["in_channels"], height, width

    @property
    def _factor(self) -> int:
        """Pixels a latent stands for, on one side."""
        return int(2 ** (len(self.config("vae")["block_out_channels"]) - 1))

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32 by the model's own scheduler."""
        return scheduler_sigmas(self.config("scheduler"), steps, even=self.schedule == "linear")
