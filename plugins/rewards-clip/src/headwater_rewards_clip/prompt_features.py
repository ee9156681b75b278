"""Text features, each prompt's once, and one warning for prompts that are too long."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from headwater_rewards_clip.scores import text_features
from headwater_rewards_clip.tokens import Tokenizer, Tokens, tokenize

_AT_ONCE = 64


@attrs.define(eq=False)
class PromptFeatures:
    """Features of prompts by a frozen CLIP model, kept: they do not depend on the image."""

    clip: Any
    tokenizer: Tokenizer
    warned: bool = attrs.field(init=False, default=False)
    _kept: dict[str, Tensor] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """ValueError where tokenizer and model do not belong together."""
        config = self.clip.config.text_config
        rows, end = config.vocab_size, config.eos_token_id
        if self.tokenizer.size > rows:
            raise ValueError(
                f"the tokenizer has {self.tokenizer.size} tokens, the model knows {rows}; set "
                f"tokenizer to the folder of the model's own"
            )
        # Old configurations say 2; their feature is read at the largest token number instead.
        end = self.tokenizer.size - 1 if end == 2 else end
        if self.tokenizer.end != end:
            raise ValueError(
                f"the tokenizer ends a text with token {self.tokenizer.end}, the model reads its "
                f"feature at token {end}; set tokenizer to the folder of the model's own"
            )

    @property
    def context(self) -> int:
        """Tokens the model takes."""
        return int(self.clip.config.text_config.max_position_embeddings)

    def announce(self, texts: Sequence[str]) -> None:
        """Warn now if any of these prompts will be cut."""
        self._tokens(list(dict.fromkeys(texts)))

    @torch.no_grad()
    def get(self, texts: Sequence[str]) -> Tensor:
        """(B, D) features of length 1."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._kept]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            tokens = self._tokens(part)
            device = self.clip.device
            found = text_features(self.clip, tokens.ids.to(device), tokens.mask.to(device))
            self._kept |= zip(part, F.normalize(found, dim=-1), strict=True)
        return torch.stack([self._kept[text] for text in texts])

    def _tokens(self, texts: list[str]) -> Tokens:
        tokens = tokenize(self.tokenizer, texts, self.context)
        cut = [i for i, length in enumerate(tokens.lengths) if length > self.context]
        if cut and not self.warned:
            self.warned = True
            longest = max(cut, key=lambda i: tokens.lengths[i])
            warnings.warn(
                f"prompts over {self.context} tokens are cut: {len(cut)} of {len(texts)}, the "
                f"longest of {tokens.lengths[longest]} tokens begins {texts[longest][:60]!r}",
                stacklevel=2,
            )
        return tokens
