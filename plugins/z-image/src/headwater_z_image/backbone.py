"""The backbone `z-image`: Z-Image and Z-Image-Turbo from a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater.families import FamilyBackbone, folder
from headwater.families.embeddings import Embedding
from headwater.families.schedules import latent_size, linear_mu, scheduler_sigmas
from headwater.types import Request
from headwater.validators import in_range


@attrs.define(eq=False)
class ZImage(FamilyBackbone):
    """Z-Image: classifier-free guidance, latents (C, H / 8, W / 8).

    Its conventions end here: its time is 1 - sigma, its output -v, and its pipeline's
    `guidance_scale` is our guidance less 1.
    """

    guidance_kind: ClassVar[Literal["classifier-free"]] = "classifier-free"
    pipelines: ClassVar[tuple[str, ...]] = ("ZImagePipeline",)
    encoders: ClassVar[tuple[str, ...]] = ("tokenizer", "text_encoder")
    package: ClassVar[str] = "headwater_z_image"
    targets: ClassVar[tuple[str, ...]] = (
        *("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0"),
        *("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
    )
    paper: ClassVar[str] = "arXiv 2511.22699"

    max_length: int = attrs.field(default=512, validator=in_range(1, 512))
    """Tokens of a prompt with its chat template."""
    distilled: bool | None = None
    """Whether it takes no guidance, as Turbo. Unset: by the hub id; a folder's by its scheduler,
    whose shift is 3 in Turbo and 6 in Z-Image, and which alone tells them apart."""

    def made_with(self) -> Mapping[str, str]:
        """The length."""
        return {"maximum length": str(self.max_length)}

    def unused(self) -> tuple[str, ...]:
        """The pad tokens: whether they reach the output depends on the size and the prompts."""
        return ("x_pad_token", "cap_pad_token")

    @property
    def guided(self) -> bool:
        """Not at 1, nor at 0: the pipeline's own word for none."""
        return self._guidance > 1

    def network_evaluations(self, guidance: float) -> tuple[int, int]:
        """As of any family; 0 is no guidance either."""
        return super().network_evaluations(max(guidance, 1.0))

    def guidance_problems(self, guidance: float) -> list[str]:
        """A distilled model takes no guidance, and none is 1 or 0."""
        if 0 < guidance < 1:
            return [f"expected [rollout] guidance of 1 (none) or more, got {guidance}"]
        if guidance <= 1 or not self._is_distilled():
            return []
        return [
            f"this model is distilled and takes no guidance; [rollout] guidance is {guidance}. "
            f"If it is not, say distilled = false"
        ]

    def _is_distilled(self) -> bool:
        if self.distilled is not None:
            return self.distilled
        known = {} if folder.is_local(self.model) else folder.released(self.package)
        if self.model in known:
            return bool(known[self.model]["is_distilled"])
        return bool(self.config("scheduler").get("shift") == 3)

    def embed(self, pipeline: Any, texts: list[str]) -> list[Embedding]:
        """Token states (L, 2560) of each prompt, without padding, and a mask of ones."""
        states, _ = pipeline.encode_prompt(
            prompt=list(texts),  # the pipeline overwrites the list it is given
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_length,
        )
        return [{"states": s, "mask": torch.ones(len(s), dtype=torch.long)} for s in states]

    def longest(self) -> Mapping[str, tuple[int, ...]]:
        """A prompt of the maximum length; shorter ones take less."""
        width = self.config("transformer")["cap_feat_dim"]
        return {"states": (self.max_length, width), "mask": (self.max_length,)}

    def evaluate(self, x: Tensor, sigma: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """The latents are lists of (C, 1, h, w), the prompts lists of (L, 2560), each its own L."""
        lengths = text["mask"].sum(dim=1).tolist()
        minus_v = self.network(
            x=list(x.unsqueeze(2)),
            t=1 - sigma,
            cap_feats=[s[:n] for s, n in zip(text["states"], lengths, strict=True)],
            return_dict=False,
        )[0]
        return -torch.stack(minus_v).squeeze(2)

    def decode_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Undo the latents' scale and shift, then decode."""
        z = latents / vae.config.scaling_factor + vae.config.shift_factor
        images: Tensor = vae.decode(z, return_dict=False)[0]
        return images

    def shape(self, request: Request) -> tuple[int, ...]:
        """(C, H / f, W / f) for a decoder of factor f."""
        transformer = self.config("transformer")
        factor = 2 ** (len(self.config("vae")["block_out_channels"]) - 1)
        height, width = latent_size(request, factor, 2 * factor, "z-image")
        for size, most in zip((height, width), transformer["axes_lens"][1:], strict=True):
            if size > 2 * most:
                raise ValueError(
                    f"this model's positions end at {2 * most * factor} pixels, [rollout] asks "
                    f"for {request.height} x {request.width}"
                )
        return transformer["in_channels"], height, width

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32, by the scheduler's own shift, or by the number of tokens."""
        config = self.config("scheduler")
        return scheduler_sigmas(config, steps, linear_mu(config, shape[1] * shape[2] // 4))
