"""The families: plugin, tiny pipeline, settings, and the words of its own pipeline call."""

import attrs
import diffusers

from headwater.protocols import LoadContext
from headwater.testing import pipelines as tiny_pipelines
from headwater.types import Prompt
from headwater_flux.backbone import Flux
from headwater_flux2.backbone import Flux2
from headwater_qwen_image.backbone import QwenImage
from headwater_sd3.backbone import Sd3
from headwater_z_image.backbone import ZImage

PROMPTS = (Prompt("a cat", negative="blurry"), Prompt("two red dogs on a hill", negative="dull"))
BASE = {"dtype": "float32", "rank": 4, "alpha": 6.0, "max_length": 24}


@attrs.frozen(eq=False)
class Family:
    name: str
    plugin: type
    pipeline: str
    make: object
    settings: dict
    guidances: tuple
    layer: str = "transformer_blocks.0.attn.to_q"
    """A layer that its LoRA adapts."""

    def load(self, folder, guidance=None, prompts=PROMPTS, **settings):
        plugin = self.plugin(str(folder), **{**BASE, **self.settings, **settings})
        scale = self.guidances[-1] if guidance is None else guidance
        plugin.load(LoadContext("cpu", guidance=scale, seed=5, prompts=prompts))
        return plugin

    def own_pipeline(self, folder):
        pipeline = getattr(diffusers, self.pipeline).from_pretrained(folder)
        pipeline.set_progress_bar_config(disable=True)
        if self.name == "qwen-image":
            pipeline.prompt_template_encode = "{}."
            pipeline.prompt_template_encode_start_idx = 0
        return pipeline

    def call(self, pipeline, rollout, guidance, height, width):
        """The family's own sampling from our noise: images (B, 3, H, W)."""
        start = rollout.state(0).clone()
        texts, negative = [p.text for p in PROMPTS], [p.negative for p in PROMPTS]
        common = {
            "prompt": texts,
            "height": height,
            "width": width,
            "num_inference_steps": rollout.steps,
            "output_type": "pt",
            "max_sequence_length": 24,
        }
        if self.name == "sd3":
            own = {"guidance_scale": guidance, "negative_prompt": negative, "latents": start}
        elif self.name == "flux":
            b, c, h, w = start.shape
            tokens = pipeline._pack_latents(start, b, c, h, w)
            own = {"guidance_scale": guidance, "latents": tokens}
        elif self.name == "flux2":
            embeds, _ = pipeline.encode_prompt(
                prompt=negative, max_sequence_length=24, text_encoder_out_layers=(1, 2, 3)
            )
            own = {
                "guidance_scale": guidance,
                "latents": start,
                "negative_prompt_embeds": embeds,
                "text_encoder_out_layers": (1, 2, 3),
            }
        elif self.name == "z-image":  # its scale is of what guidance adds
            own = {"guidance_scale": guidance - 1, "negative_prompt": negative, "latents": start}
        else:
            b, c, h, w = start.shape
            own = {
                "true_cfg_scale": guidance,
                "negative_prompt": negative,
                "latents": pipeline._pack_latents(start, b, c, h, w),
            }
        return pipeline(**common, **own).images


FAMILIES = {
    "sd3": Family("sd3", Sd3, "StableDiffusion3Pipeline", tiny_pipelines.sd3, {}, (1.0, 3.5)),
    "flux": Family("flux", Flux, "FluxPipeline", tiny_pipelines.flux, {}, (1.0, 3.5)),
    "flux2": Family(
        "flux2",
        Flux2,
        "Flux2KleinPipeline",
        tiny_pipelines.flux2,
        {"text_layers": (1, 2, 3)},
        (1.0, 4.0),
    ),
    "qwen-image": Family(
        "qwen-image",
        QwenImage,
        "QwenImagePipeline",
        tiny_pipelines.qwen_image,
        {"template": "{}.", "template_tokens": 0},
        (1.0, 4.0),
    ),
    "z-image": Family(
        "z-image",
        ZImage,
        "ZImagePipeline",
        tiny_pipelines.z_image,
        {},
        (1.0, 5.0),
        "layers.0.attention.to_q",
    ),
}
