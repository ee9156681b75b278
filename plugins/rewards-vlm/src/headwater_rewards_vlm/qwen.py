"""HPSv3's network: Qwen2-VL and a small head that reads a reward token (arXiv 2508.03789).

Nothing is generated. One user turn holds the image and the instruction with the prompt in it; the
head reads the hidden state of `<|Reward|>` and gives (mu, sigma).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwater_rewards_vlm.weights import check_same, first_line

REWARD_TOKEN = "<|Reward|>"
HEAD_WIDTHS = (1024, 16, 2)
HEAD_PLACES = (0, 3, 5)
"""Places of the linear layers; ReLU at 1 and 4, dropout at 2."""
PARTS = ("config.json", "tokenizer_config.json")
"""Files of the base model that are read; its weights are not."""


class Hpsv3Network(nn.Module):
    """The language model with eyes, and the head in float32."""

    model: Any
    rm_head: Any

    def __init__(self, model: nn.Module, width: int) -> None:
        super().__init__()
        self.model = model
        layers: list[nn.Module] = [nn.Linear(width, HEAD_WIDTHS[0]), nn.ReLU(), nn.Identity()]
        layers += [nn.Linear(HEAD_WIDTHS[0], HEAD_WIDTHS[1]), nn.ReLU()]
        self.rm_head = nn.Sequential(*layers, nn.Linear(HEAD_WIDTHS[1], HEAD_WIDTHS[2]))

    def forward(
        self, ids: Tensor, mask: Tensor, patches: Tensor, grid: Tensor, places: Tensor
    ) -> Tensor:
        """(B, 2), mu and sigma.

        ids, mask: (B, L), padded on the right. patches: (B h w, P). grid: (B, 3) of 1, h, w.
        places: (B,) of the reward token. Positions count tokens, image ones too: HPSv3 was trained
        without Qwen2-VL's rows and columns.
        """
        positions = torch.arange(ids.shape[1], device=ids.device).expand(3, *ids.shape)
        hidden = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            pixel_values=patches,
            image_grid_thw=grid,
            use_cache=False,
        ).last_hidden_state
        read = hidden[torch.arange(len(ids), device=ids.device), places]
        out: Tensor = self.rm_head(read.to(self.rm_head[0].weight.dtype))
        return out


def renamed(name: str) -> str:
    """A weight's name in HPSv3's files to this network's; empty for the one that is not used.

    The released file has the names of older transformers, without `language_model`.
    """
    if name == "lm_head.weight":
        return ""
    if name.startswith("rm_head."):
        return name
    name = name.removeprefix("model.") if name.startswith("model.visual.") else name
    if name.startswith("visual."):
        return f"model.{name}"
    rest = name.removeprefix("model.").removeprefix("language_model.")
    return f"model.language_model.{rest}"


def network_from_state(
    state: Mapping[str, Tensor], base: str | Path, dtype: torch.dtype, source: str
) -> Hpsv3Network:
    """A frozen network; every weight is accounted for. ValueError names those that are not.

    base: folder with the base model's config.json. The token table's size is the file's.
    """
    from transformers import Qwen2VLModel

    converted = {renamed(name): value for name, value in state.items()}
    converted.pop("", None)
    table = converted.get("model.language_model.embed_tokens.weight")
    if table is None:
        raise ValueError(f"{source} does not hold HPSv3: it has no token table (embed_tokens)")
    config = base_config(base, rows=len(table))
    width = config.text_config.hidden_size
    with torch.device("meta"):
        blank = Hpsv3Network(Qwen2VLModel(config), width)
    check_same(converted, blank.state_dict(), _original, source)
    inner = {
        name.removeprefix("model."): value.to(dtype)
        for name, value in converted.items()
        if name.startswith("model.")
    }
    model = Qwen2VLModel.from_pretrained(None, config=config, state_dict=inner, dtype=dtype)
    network = Hpsv3Network(model, width)
    head = {
        name.removeprefix("rm_head."): value.to(_head_dtype(dtype))
        for name, value in converted.items()
        if name.startswith("rm_head.")
    }
    network.rm_head.load_state_dict(head, strict=True, assign=True)
    return network.eval().requires_grad_(requires_grad=False)


def _head_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _original(name: str) -> str:
    """The released file's name of a weight."""
    if name.startswith("model.visual."):
        return name.removeprefix("model.")
    return name.replace("model.language_model.", "model.")


def base_config(base: str | Path, rows: int) -> Any:
    """Qwen2VLConfig of a folder, with `rows` tokens. ValueError where it is another model's."""
    from transformers import Qwen2VLConfig

    path = Path(base) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {first_line(error)}") from None
    if found.get("model_type") != "qwen2_vl":
        raise ValueError(f"{path} is of a model {found.get('model_type')!r}, expected 'qwen2_vl'")
    config = Qwen2VLConfig.from_pretrained(str(base))
    config.text_config.vocab_size = rows
    return config


def tokenizer_of(base: str | Path, rows: int) -> Any:
    """The base model's tokenizer with the reward token. ValueError where it does not fit."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(base))
    except Exception as error:
        raise ValueError(f"{base} holds no tokenizer: {first_line(error)}") from error
    if tokenizer.chat_template is None:
        raise ValueError(f"the tokenizer of {base} has no chat template")
    tokenizer.add_special_tokens({"additional_special_tokens": [REWARD_TOKEN]})
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer of {base} has {len(tokenizer)} tokens, the network knows {rows}"
        )
    return tokenizer


def turn(tokenizer: Any, text: str, image_token: str, count: int) -> str:
    """One user turn in the model's own chat form, with `count` image tokens in the image's place.

    text: the instruction with its prompt.
    """
    content = [{"type": "image"}, {"type": "text", "text": text}]
    said: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    if said.count(image_token) != 1:
        raise ValueError(f"the chat template puts {said.count(image_token)} images into a turn")
    return said.replace(image_token, image_token * count)


def harmless(prompt: str) -> str:
    """A prompt without special tokens: `<|` is parted, so that no image or reward is faked."""
    return prompt.replace("<|", "< |")


def batch_of(tokenizer: Any, texts: Sequence[str], pad: int) -> tuple[Tensor, Tensor]:
    """Token numbers and mask, (B, L), padded on the right."""
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), pad, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    return ids, mask
