"""A tiny Qwen2-VL of the real classes with a tokenizer, and HPSv3's head, saved to a folder."""

import hashlib

import tokenizers
import torch
from safetensors.torch import save_file

from headwater.protocols import LoadContext
from headwater_rewards_vlm.hpsv3 import Hpsv3

TEXT = "How good is it?\nPrompt: {text_prompt}\nVerdict: <|Reward|> .\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


def tokenizer():
    from transformers import Qwen2Tokenizer

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate(["<|endoftext|>", *letters])}
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        chat_template=CHAT,
        additional_special_tokens=[*SPECIAL, "<|video_pad|>"],
    )


def config(made):
    from transformers import Qwen2VLConfig

    text = {
        "vocab_size": len(made),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [1, 1, 2],
        },
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "num_heads": 2}
    return Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=made.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=made.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=made.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=made.convert_tokens_to_ids("<|vision_end|>"),
    )


def head():
    generator = torch.Generator().manual_seed(4)
    sizes = {0: (1024, 32), 3: (16, 1024), 5: (2, 16)}
    out = {}
    for place, shape in sizes.items():
        out[f"rm_head.{place}.weight"] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
        out[f"rm_head.{place}.bias"] = torch.randn(shape[0], generator=generator) * 0.1
    return out


class Small:
    """A base folder, a checkpoint under the released file's names, and its parts."""

    def __init__(self, folder):
        from transformers import Qwen2VLForConditionalGeneration

        self.folder, self.tokenizer = folder, tokenizer()
        torch.manual_seed(3)
        self.model = Qwen2VLForConditionalGeneration(config(self.tokenizer)).eval()
        self.model.resize_token_embeddings(len(self.tokenizer) + 1)  # <|Reward|>
        self.head = head()
        self.model.config.save_pretrained(folder / "base")
        self.tokenizer.save_pretrained(folder / "base")
        state = {self.old_name(k): v.clone() for k, v in self.model.state_dict().items()}
        self.state = {**state, **self.head}
        save_file(self.state, folder / "HPSv3.safetensors")
        (folder / "instruction.txt").write_text(TEXT)

    @staticmethod
    def old_name(name):
        return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")

    def reward(self, **settings):
        given = {
            "model": str(self.folder / "HPSv3.safetensors"),
            "base": str(self.folder / "base"),
            "instruction": str(self.folder / "instruction.txt"),
            "instruction_sha256": DIGEST,
            "pixels": 16 * 28 * 28,
            "dtype": "float32",
            **settings,
        }
        made = Hpsv3(**given)
        made.load(LoadContext("cpu"))
        return made


RELEASED = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "image_token_id": 151655,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}
"""The sizes of the released base model, in the flat form of its time."""
