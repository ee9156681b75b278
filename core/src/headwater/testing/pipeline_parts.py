"""Tiny random tokenizers, text encoders and decoders of the real classes, made offline."""

from __future__ import annotations

from typing import Any

import torch


def alphabet() -> list[str]:
    """The 256 letters of a byte-level vocabulary."""
    import tokenizers

    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def clip_tokenizer() -> Any:
    """Bytes, no merges."""
    from transformers import CLIPTokenizer

    letters = alphabet()
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(c + "</w>" for c in letters)]
    vocabulary = {word: i for i, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5_tokenizer() -> Any:
    """The printable ASCII letters."""
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(chr(c), -3.0) for c in range(33, 127)]
    return T5TokenizerFast(vocab=pieces, extra_ids=0)


def qwen_tokenizer() -> Any:
    """Bytes, no merges, with a chat template."""
    from transformers import Qwen2Tokenizer

    vocabulary = {word: i for i, word in enumerate(["<|endoftext|>", *alphabet()])}
    chat = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        chat_template=chat,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )


def clip_encoder(tokenizer: Any, *, projection: bool, seed: int) -> Any:
    """Two layers of width 16."""
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


def t5_encoder(tokenizer: Any, width: int, seed: int) -> Any:
    """Two layers."""
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


def autoencoder(seed: int, scaling: float, shift: float) -> Any:
    """Four latent channels; its decoder doubles the size."""
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


def dynamic_scheduler(**settings: Any) -> Any:
    """A scheduler whose shift depends on the image's size."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, **settings)


def awake(network: Any) -> Any:
    """Zero-initialised outputs would hide errors."""
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return network
