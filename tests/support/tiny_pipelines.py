"""Whole diffusers pipelines of the real classes from tiny random parts, made offline."""

from pathlib import Path

import tokenizers
import torch


def alphabet():
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def clip_tokenizer():
    from transformers import CLIPTokenizer

    letters = alphabet()
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(c + "</w>" for c in letters)]
    vocabulary = {word: i for i, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5_tokenizer():
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(chr(c), -3.0) for c in range(33, 127)]
    return T5TokenizerFast(vocab=pieces, extra_ids=0)


def clip_encoder(tokenizer, projection, seed):
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(seed)
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=16,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


def t5_encoder(tokenizer, width, seed):
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        pad_token_id=0,
        eos_token_id=1,
    )
    return T5EncoderModel(config)


def autoencoder(seed, scaling, shift):
    from diffusers import AutoencoderKL

    torch.manual_seed(seed)
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=scaling,
        shift_factor=shift,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def sd3(seed=0, encoder_seed=1):
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
    for parameter in transformer.parameters():  # zero-initialised outputs would hide errors
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=autoencoder(seed + 1, 1.5305, 0.0609),
        text_encoder=encoders[0],
        tokenizer=clip,
        text_encoder_2=encoders[1],
        tokenizer_2=clip,
        text_encoder_3=third,
        tokenizer_3=t5,
    )


def saved(make, folder: Path, **settings):
    """Save a pipeline and give its folder."""
    make(**settings).save_pretrained(folder)
    return folder
