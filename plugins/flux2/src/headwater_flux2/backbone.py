"""The backbone `flux2`: FLUX.2 Klein from a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater.families import FamilyBackbone, folder
from headwater.families.embeddings import Embedding
from headwater.families.schedules import empirical_mu, latent_size, scheduler_sigmas
from headwater.types import Request
from headwater.validators import in_range


@attrs.define(eq=False)
class Flux2(FamilyBackbone):
    """FLUX.2 Klein: classifier-free guidance, latents of 2 x 2 patches (4 C, H / 16, W / 16).

    The latents are normalised by the decoder's batch-norm statistics.
    """

    guidance_kind: ClassVar[Literal["classifier-free"]] = "classifier-free"
    pipelines: ClassVar[tuple[str, ...]] = ("Flux2KleinPipeline",)
    encoders: ClassVar[tuple[str, ...]] = ("tokenizer", "text_encoder")
    package: ClassVar[str] = "headwater_flux2"
    targets: ClassVar[tuple[str, ...]] = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        "attn.to_qkv_mlp_proj",
    )

    max_length: int = attrs.field(default=512, validator=in_range(1, 4096))
    """Tokens of the text encoder; prompts are padded to it."""
    text_layers: tuple[int, ...] = (9, 18, 27)
    """Layers of the text encoder whose states are joined."""

    def lora_targets(self) -> tuple[str, ...]:
        """Those of `targets`, and the output layers of the single-stream blocks.

        In the other blocks the same name holds a list of modules, so these are named one by one.
        """
        count = self.config("transformer")["num_single_layers"]
        singles = (f"single_transformer_blocks.{i}.attn.to_out" for i in range(count))
        return (*self.targets, *singles)

    def made_with(self) -> Mapping[str, str]:
        """Length and layers."""
        return {"maximum length": str(self.max_length), "layers": str(self.text_layers)}

    def guidance_problems(self, guidance: float) -> list[str]:
        """A distilled model takes no guidance."""
        known = {} if folder.is_local(self.model) else folder.released(self.package)
        if self.model in known:
            distilled = known[self.model]["is_distilled"]
        else:
            distilled = folder.model_index(self.model).get("is_distilled")
        if not distilled or guidance == 1:
            return []
        return [f"this model is distilled and takes no guidance; [rollout] guidance is {guidance}"]

    def embed(self, pipeline: Any, texts: list[str]) -> list[Embedding]:
        """Token states (L, layers x hidden) of each prompt."""
        states, _ = pipeline.encode_prompt(
            prompt=texts,
            max_sequence_length=self.max_length,
            text_encoder_out_layers=self.text_layers,
        )
        return [{"states": s} for s in states]

    def longest(self) -> Mapping[str, tuple[int, ...]]:
        """Prompts are padded to the maximum length."""
        return {"states": (self.max_length, self.config("transformer")["joint_attention_dim"])}

    def evaluate(self, x: Tensor, sigma: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Time is sigma; positions are (0, row, column, 0), and (0, 0, 0, l) for the text."""
        b, c, h, w = x.shape
        tokens = self.network(
            hidden_states=x.flatten(2).transpose(1, 2),
            timestep=sigma,
            guidance=None,
            encoder_hidden_states=text["states"],
            txt_ids=positions(1, 1, text["states"].shape[1]).to(x.device),
            img_ids=positions(h, w, 1).to(x.device),
            return_dict=False,
        )[0]
        v: Tensor = tokens.transpose(1, 2).reshape(b, c, h, w)
        return v

    def decode_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Undo the batch norm, unpatchify, decode."""
        mean = vae.bn.running_mean.view(1, -1, 1, 1).to(latents)
        variance = vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps
        z = latents * variance.sqrt().to(latents) + mean
        b, c, h, w = z.shape
        z = z.view(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
        images: Tensor = vae.decode(z.reshape(b, c // 4, 2 * h, 2 * w), return_dict=False)[0]
        return images

    def shape(self, request: Request) -> tuple[int, ...]:
        """(4 C, H / 2 f, W / 2 f) for a decoder of factor f."""
        factor = 2 ** (len(self.config("vae")["block_out_channels"]) - 1)
        height, width = latent_size(request, 2 * factor, 2 * factor, "flux2")
        return self.config("transformer")["in_channels"], height, width

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32, shifted by the number of tokens and of steps."""
        mu = empirical_mu(shape[1] * shape[2], steps)
        return scheduler_sigmas(self.config("scheduler"), steps, mu)


def positions(rows: int, columns: int, length: int) -> Tensor:
    """(rows * columns * length, 4) of (0, row, column, l)."""
    axes = [torch.arange(n) for n in (1, rows, columns, length)]
    return torch.cartesian_prod(*axes)
