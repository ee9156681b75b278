"""Whole diffusers pipelines of the real classes from tiny random parts, made offline.

Needs diffusers, transformers and tokenizers, which a family's package brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from headwater.testing.pipeline_parts import (
    autoencoder,
    awake,
    clip_encoder,
    clip_tokenizer,
    dynamic_scheduler,
    qwen_tokenizer,
    t5_encoder,
    t5_tokenizer,
)


def sd3(seed: int = 0, encoder_seed: int = 1) -> Any:
    """StableDiffusion3Pipeline; its decoder doubles the size."""
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )

    clip, t5 = clip_tokenizer(), t5_tokenizer()
    encoders = [clip_encoder(clip, projection=True, seed=encoder_seed + k) for k in range(2)]
    third = t5_encoder(t5, 32, encoder_seed + 2)
    torch.manual_seed(seed)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        pos_embed_max_size=16,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )
    return StableDiffusion3Pipeline(
        transformer=awake(transformer),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=autoencoder(seed + 1, 1.5305, 0.0609),
        text_encoder=encoders[0],
        tokenizer=clip,
        text_encoder_2=encoders[1],
        tokenizer_2=clip,
        text_encoder_3=third,
        tokenizer_3=t5,
    )


def saved(make: Callable[..., Any], folder: Path, **settings: Any) -> Path:
    """Save a pipeline and give its folder."""
    make(**settings).save_pretrained(folder)
    return folder


def flux(seed: int = 0, encoder_seed: int = 1, *, guidance: bool = True) -> Any:
    """FluxPipeline; its decoder doubles the size."""
    from diffusers import FluxPipeline, FluxTransformer2DModel

    clip, t5 = clip_tokenizer(), t5_tokenizer()
    first, second = (
        clip_encoder(clip, projection=False, seed=encoder_seed),
        t5_encoder(t5, 32, encoder_seed + 1),
    )
    torch.manual_seed(seed)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        guidance_embeds=guidance,
        axes_dims_rope=(4, 4, 8),
    )
    return FluxPipeline(
        transformer=awake(transformer),
        scheduler=dynamic_scheduler(base_shift=0.5, max_shift=1.15),
        vae=autoencoder(seed + 1, 0.3611, 0.1159),
        text_encoder=first,
        tokenizer=clip,
        text_encoder_2=second,
        tokenizer_2=t5,
    )


def flux2(seed: int = 0, encoder_seed: int = 1, *, distilled: bool = False) -> Any:
    """Flux2KleinPipeline; its decoder keeps the size, so a latent stands for 2 x 2 pixels."""
    from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = qwen_tokenizer()
    torch.manual_seed(encoder_seed)
    encoder = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
        )
    )
    torch.manual_seed(seed)
    transformer = Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=48,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
        block_out_channels=(8,),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=1,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    vae.bn.running_mean.copy_(torch.linspace(-0.3, 0.4, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 1.6, 16))
    return Flux2KleinPipeline(
        scheduler=dynamic_scheduler(),
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=awake(transformer),
        is_distilled=distilled,
    )


def qwen_image(seed: int = 0, encoder_seed: int = 1) -> Any:
    """QwenImagePipeline; its decoder doubles the size."""
    from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = qwen_tokenizer()
    torch.manual_seed(encoder_seed)
    encoder = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    "mrope_section": [2, 3, 3],
                },
            },
            vision_config={
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": 32,
            },
        )
    )
    torch.manual_seed(seed)
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(8, 4, 4),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.1, 0.9, 1.3, 0.7],
    )
    return QwenImagePipeline(
        scheduler=dynamic_scheduler(base_shift=0.5, max_shift=0.9, shift_terminal=0.02),
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=awake(transformer),
    )


def z_image(seed: int = 0, encoder_seed: int = 1, shift: float = 6.0) -> Any:
    """ZImagePipeline; its decoder doubles the size."""
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        ZImagePipeline,
        ZImageTransformer2DModel,
    )
    from transformers import Qwen3Config, Qwen3Model

    tokenizer = qwen_tokenizer()
    torch.manual_seed(encoder_seed)
    encoder = Qwen3Model(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
        )
    )
    torch.manual_seed(seed)
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[8, 4, 4],
        axes_lens=[128, 32, 32],
    )
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=autoencoder(seed + 1, 0.3611, 0.1159),
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=awake(transformer),
    )


FAMILIES: Mapping[str, Callable[..., Any]] = {
    "sd3": sd3,
    "flux": flux,
    "flux2": flux2,
    "qwen-image": qwen_image,
    "z-image": z_image,
}
"""A family's name, as `headwater_pipeline` takes it: what makes its pipeline."""
