"""`tiny-preference`: a small learned scorer of an image and its prompt, in the place of HPSv2.1.

Two towers, one over 16 image tokens and one over the words, and a gated MLP that compares them.
Scale: a perfect drawing is about 1, one flaw 0, two flaws or another prompt's image -1; bounded
to (-2, 2). Everything is smooth in the image (GELU, LayerNorm, tanh; no clamp).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwater_tiny.grammar import VOCABULARY
from headwater_tiny.text import LENGTH, tokenize

MARGIN = 0.9
"""Hinge margin: nine of ten perfect drawings score more."""
BOUND = 2.0
_TOKENS = 16


class Block(nn.Module):
    """Pre-norm self-attention and MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, dim) to (B, T, dim)."""
        B, T, dim = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(B, T, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, dim / heads)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, dim)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class Tower(nn.Module):
    """Blocks over T tokens, then all tokens flattened into one vector."""

    def __init__(self, tokens: int, dim: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(tokens, dim) * 0.3)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.narrow = nn.Linear(dim, dim // 2)
        self.read = nn.Linear(tokens * dim // 2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, dim) to (B, outputs)."""
        x = x + self.place
        for block in self.blocks:
            x = block(x)
        return self.read(F.gelu(self.narrow(self.norm(x))).flatten(1))


class PreferenceScorer(nn.Module):
    """Images and prompts to scores."""

    def __init__(self, dim: int = 128, width: int = 256) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 96, kernel_size=8, stride=4, padding=2)
        self.merge = nn.Conv2d(96, dim, kernel_size=2, stride=2)
        self.image = Tower(_TOKENS, dim, layers=4, outputs=width)
        self.word = nn.Embedding(len(VOCABULARY) + 1, dim)
        self.text = Tower(LENGTH, dim, layers=2, outputs=width)
        self.image_gate, self.text_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.image_add, self.text_add = nn.Linear(width, width), nn.Linear(width, width)
        self.hidden, self.score = nn.Linear(width, width // 2), nn.Linear(width // 2, 1)

    def embed_images(self, images: Tensor) -> Tensor:
        """Images (B, 3, 32, 32) in [0, 1] to vectors (B, 256)."""
        cells = self.merge(F.gelu(self.stem(images * 2 - 1)))  # (B, dim, 4, 4)
        return self.image(cells.flatten(2).transpose(1, 2))

    def embed_texts(self, tokens: Tensor) -> Tensor:
        """Tokens (B, 12) to vectors (B, 256)."""
        return self.text(self.word(tokens))

    def compare(self, image: Tensor, text: Tensor) -> Tensor:
        """Scores of vectors that broadcast: (..., 256) and (..., 256) to (...)."""
        gate = self.image_gate(image) * self.text_gate(text)
        mixed = F.gelu(gate + self.image_add(image) + self.text_add(text))
        raw = self.score(F.gelu(self.hidden(mixed))).squeeze(-1)
        bounded: Tensor = BOUND * torch.tanh(raw / BOUND)
        return bounded

    def forward(self, images: Tensor, texts: list[str]) -> Tensor:
        """Images (B, 3, 32, 32) and their B prompts to scores (B,), higher is better."""
        tokens = tokenize(texts).to(images.device)
        return self.compare(self.embed_images(images), self.embed_texts(tokens))


def load_preference(dtype: torch.dtype = torch.float32) -> PreferenceScorer:
    """The trained scorer on the CPU, frozen, in evaluation mode."""
    from headwater_tiny.model import read_weights

    scorer = PreferenceScorer()
    scorer.load_state_dict(read_weights("preference.safetensors"))
    return scorer.eval().requires_grad_(requires_grad=False).to(dtype)
