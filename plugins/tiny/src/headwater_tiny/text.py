"""Words to token ids, and a small embedder of them.

A prompt becomes (L, d) word states for the joint attention and one pooled vector for the
modulation, as an SD3 transformer takes them. The empty prompt is L padding tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwater_tiny.grammar import VOCABULARY, words

LENGTH = 12
"""L: words of the longest prompt."""
PAD = 0
_IDS = {word: i for i, word in enumerate(VOCABULARY, start=1)}


def tokenize(texts: Sequence[str]) -> Tensor:
    """Token ids (B, 12) int64, padded with 0. ValueError names an unknown word."""
    rows = []
    for text in texts:
        ids = [_IDS[word] for word in words(text)]
        if len(ids) > LENGTH:
            raise ValueError(f"a prompt has at most {LENGTH} words, got {len(ids)}: {text!r}")
        rows.append(ids + [PAD] * (LENGTH - len(ids)))
    return torch.tensor(rows, dtype=torch.long).view(len(rows), LENGTH)


class TextEmbedder(nn.Module):
    """Word embeddings with learned places, and a pooled MLP over them."""

    def __init__(self, dim: int, pooled: int) -> None:
        super().__init__()
        self.word = nn.Embedding(len(VOCABULARY) + 1, dim)
        self.place = nn.Parameter(torch.randn(LENGTH, dim) * 0.5)
        self.norm = nn.LayerNorm(dim)
        self.pool = nn.Sequential(nn.Linear(dim, pooled), nn.SiLU(), nn.Linear(pooled, pooled))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, L) to word states (B, L, dim) and a pooled vector (B, pooled)."""
        states = self.norm(self.word(tokens) + self.place)
        return states, self.pool(states.mean(dim=1))
