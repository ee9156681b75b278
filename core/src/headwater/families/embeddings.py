"""Prompt embeddings on disk, so that a text encoder runs once for a prompt and not at all later.

An entry is named by the prompt and by all that its embedding depends on: the encoders' weights and
tokenizers, dtype, maximum length and template. Text is taken as it stands: case and spaces count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

Embedding = dict[str, Tensor]
"""Named tensors of one prompt, without a batch axis."""


@attrs.define(eq=False)
class EmbeddingCache:
    """Embeddings by prompt; in memory where no folder is given."""

    folder: Path | None
    made_by: Mapping[str, str]
    """What an embedding depends on beside its prompt; see `fingerprint`."""
    hits: int = 0
    """Prompts that were there when first asked for."""
    misses: int = 0
    """Prompts that were encoded."""
    reasons: set[str] = attrs.field(factory=set)
    """Which parts of `made_by` differed, where a prompt was there under others."""
    _memory: dict[str, Embedding] = attrs.field(factory=dict)
    _asked: set[str] = attrs.field(factory=set)

    def get(
        self, texts: Sequence[str], encode: Callable[[list[str]], list[Embedding]]
    ) -> list[Embedding]:
        """Embeddings of prompts; those not there are encoded and kept."""
        missing = [text for text in dict.fromkeys(texts) if not self._has(text)]
        self.misses += len(missing)
        self.hits += len({*texts} - {*missing} - self._asked)
        self._asked.update(texts)
        if missing:
            for text, embedding in zip(missing, encode(missing), strict=True):
                self._put(text, embedding)
        return [self._take(text) for text in texts]

    def report(self) -> str:
        """One line for the user."""
        if self.folder is None:
            return f"prompt embeddings: {self.misses} encoded, kept for this run alone"
        text = f"prompt embeddings: {self.hits} from the cache, {self.misses} encoded"
        if self.reasons:
            text += f" (kept ones were made with other {', '.join(sorted(self.reasons))})"
        return text

    def _has(self, text: str) -> bool:
        if text in self._memory:
            return True
        if self.folder is None:
            return False
        if self._path(text).is_file():
            return True
        for path in self.folder.glob(f"{digest(text)}-*.safetensors"):
            with safe_open(path, "pt") as file:
                other = json.loads(file.metadata()["made_by"])
            keys = {*self.made_by, *other}
            self.reasons |= {k for k in keys if self.made_by.get(k) != other.get(k)}
        return False

    def _put(self, text: str, embedding: Embedding) -> None:
        kept = {name: value.detach().cpu().contiguous() for name, value in embedding.items()}
        if self.folder is None:
            self._memory[text] = kept
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(text)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        save_file(kept, partial, {"made_by": json.dumps(dict(self.made_by)), "prompt": text})
        partial.replace(path)

    def _take(self, text: str) -> Embedding:
        if text in self._memory:
            return self._memory[text]
        with safe_open(self._path(text), "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def _path(self, text: str) -> Path:
        assert self.folder is not None
        rest = digest(json.dumps(dict(self.made_by), sort_keys=True))
        return self.folder / f"{digest(text)}-{rest}.safetensors"


def digest(text: str) -> str:
    """Short name of a text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def fingerprint(folder: Path, components: Sequence[str]) -> str:
    """Hash of every file of some components: weights, configurations and vocabularies."""
    total = hashlib.blake2b(digest_size=16)
    for component in components:
        for path in sorted((folder / component).rglob("*")):
            if path.is_file():
                total.update(f"{component}/{path.name}".encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 22):
                        total.update(block)
    return total.hexdigest()


def stacked(embeddings: Sequence[Embedding], device: str) -> Embedding:
    """One batch: every tensor (B, ...). Shorter ones are padded with zeros on their first axis."""
    out = {}
    for name in embeddings[0]:
        rows = [embedding[name] for embedding in embeddings]
        longest = max(row.shape[0] for row in rows)
        padded = [
            torch.cat([row, row.new_zeros(longest - row.shape[0], *row.shape[1:])]) for row in rows
        ]
        out[name] = torch.stack(padded).to(device)
    return out
