"""The backbone `qwen-image`: Qwen-Image from a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater.errors import InputError
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

if TYPE_CHECKING:
    from headwater.composition import Run


def _one_place(_: Any, __: Any, template: str) -> None:
    """A template has one place for the prompt, or is empty."""
    try:
        places = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:
        places = []
    if template and places != [""]:
        raise ValueError(f"expected text with one {{}} for the prompt, got {template!r}")


@attrs.define(eq=False)
class QwenImage(FamilyBackbone):
    """Qwen-Image: classifier-free guidance with its norm rescale, latents (C, H / 8, W / 8)."""

    guidance_kind: ClassVar[Literal["classifier-free"]] = "classifier-free"
    pipelines: ClassVar[tuple[str, ...]] = ("QwenImagePipeline",)
    encoders: ClassVar[tuple[str, ...]] = ("tokenizer", "text_encoder")
    package: ClassVar[str] = "headwater_qwen_image"
    targets: ClassVar[tuple[str, ...]] = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        *("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
    )
    paper: ClassVar[str] = "arXiv 2508.02324"

    max_length: int = attrs.field(default=512, validator=in_range(1, 1024))
    """Tokens of a prompt, the template's own left out."""
    template: str = attrs.field(default="", validator=_one_place)
    """Text around a prompt, {} in its place; empty for the pipeline's own."""
    template_tokens: int = attrs.field(default=-1, validator=in_range(-1, 4096))
    """Tokens of the template before the prompt, which are dropped; -1 for the pipeline's own."""

    def made_with(self) -> Mapping[str, str]:
        """Length and template."""
        return {
            "maximum length": str(self.max_length),
            "template": f"{self.template} {self.template_tokens}",
        }

    def problems(self, run: Run) -> list[str]:
        """As of any family, and prompts that the template leaves empty."""
        found = super().problems(run)
        prompts = (*run.prompts, *run.evaluation_prompts)
        guided = self.network_evaluations(run.file.rollout.guidance)[0] > 1
        texts = [p.text for p in prompts] + [p.negative for p in prompts if guided]
        if self.template == "{}" and "" in texts:
            found.append(_nothing_left("", self.template))
        return found

    def unused(self) -> tuple[str, ...]:
        """The last block drops its text output: the text's queries and MLP reach nothing there."""
        last = self.config("transformer")["num_layers"] - 1
        names = ("attn.add_q_proj", "attn.norm_added_q", "attn.to_add_out", "txt_mlp")
        inside = tuple(f"txt_mlp.net.{part}" for part in ("0.proj", "2"))
        return tuple(f"transformer_blocks.{last}.{name}" for name in (*names, *inside))

    def embed(self, pipeline: Any, texts: list[str]) -> list[Embedding]:
        """Token states (L, 3584) of each prompt, without padding, and a mask of ones."""
        if self.template:
            pipeline.prompt_template_encode = self.template
        if self.template_tokens >= 0:
            pipeline.prompt_template_encode_start_idx = self.template_tokens
        out = []
        for text in texts:  # by itself, so that no prompt is padded to another's length
            template = pipeline.prompt_template_encode
            tokens = len(pipeline.tokenizer(template.format(text)).input_ids)
            if tokens <= pipeline.prompt_template_encode_start_idx:
                raise InputError("[backbone]", [_nothing_left(text, template)])
            states, _ = pipeline.encode_prompt(prompt=[text], max_sequence_length=self.max_length)
            mask = torch.ones(states.shape[1], dtype=torch.long)
            out.append({"states": states[0], "mask": mask})
        return out

    def longest(self) -> Mapping[str, tuple[int, ...]]:
        """A prompt of the maximum length; shorter ones take less."""
        width = self.config("transformer")["joint_attention_dim"]
        return {"states": (self.max_length, width), "mask": (self.max_length,)}

    def evaluate(self, x: Tensor, sigma: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Time is sigma; the latent has one frame."""
        h, w = x.shape[2], x.shape[3]
        mask = text["mask"]
        tokens = self.network(
            hidden_states=packed(x),
            timestep=sigma,
            guidance=None,
            encoder_hidden_states=text["states"],
            encoder_hidden_states_mask=None if bool(mask.all()) else mask,
            img_shapes=[[(1, h // 2, w // 2)]] * len(x),
            return_dict=False,
        )[0]
        return unpacked(tokens, h, w)

    def guide(self, v: Tensor, plain: Tensor) -> Tensor:
        """Guidance, then every token rescaled to the norm of its conditional velocity."""
        guided = packed(plain + self._guidance * (v - plain))
        given = packed(v)
        ratio = given.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)
        return unpacked(guided * ratio, v.shape[2], v.shape[3])

    def decode_latents(self, vae: Any, latents: Tensor) -> Tensor:
        """Undo the latents' statistics, then decode the one frame."""
        mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1).to(latents)
        std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1).to(latents)
        z = (latents * std + mean).unsqueeze(2)
        images: Tensor = vae.decode(z, return_dict=False)[0][:, :, 0]
        return images

    def shape(self, request: Request) -> tuple[int, ...]:
        """(C, H / f, W / f) for a decoder of factor f."""
        factor = 2 ** len(self.config("vae")["temperal_downsample"])
        height, width = latent_size(request, factor, 2 * factor, "qwen-image")
        return self.config("transformer")["in_channels"] // 4, height, width

    def sigmas(self, steps: int, shape: tuple[int, ...]) -> Tensor:
        """(N + 1,) float32, shifted by the number of tokens, then stretched to the last sigma."""
        config = self.config("scheduler")
        tokens = shape[1] * shape[2] // 4
        return scheduler_sigmas(config, steps, linear_mu(config, tokens))


def _nothing_left(text: str, template: str) -> str:
    """What to say of a prompt without a token to encode."""
    return (
        f"template: {template!r} with its template_tokens leaves no token of the prompt {text!r} "
        f"to encode, and a negative prompt is empty where none is given; put text after {{}}, as "
        f"the pipeline's own template does, or give negative prompts"
    )
