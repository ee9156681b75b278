"""Texts to CLIP's tokens, as open_clip (HPSv2) makes them or as transformers does.

Both use one vocabulary, which this package holds. They differ in cleaning: open_clip repairs the
text first (ftfy, HTML entities), transformers does not. Released rewards depend on it.
"""

from __future__ import annotations

import gzip
import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

CONTEXT = 77
"""Tokens of a text, its start and end among them."""
_START, _END = "<|startoftext|>", "<|endoftext|>"
_PIECES = r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@attrs.frozen(eq=False)
class Tokens:
    """B texts as tokens."""

    ids: Tensor
    """(B, 77), whole numbers."""
    mask: Tensor
    """(B, 77), 1 where there is a token and 0 where there is padding."""
    lengths: tuple[int, ...]
    """(B,) tokens of each whole text; above 77 it was cut."""


class Tokenizer(Protocol):
    """Text to token numbers, without start, end and padding."""

    @property
    def start(self) -> int:
        """Number of the start token."""

    @property
    def end(self) -> int:
        """Number of the end token."""

    @property
    def padding(self) -> int:
        """Number that fills up after the end."""

    @property
    def size(self) -> int:
        """Token numbers are below it."""

    def pieces(self, text: str) -> list[int]:
        """Every token of a text, however long."""


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], context: int = CONTEXT) -> Tokens:
    """Start, tokens, end, padding; a text that is too long is cut and keeps its end."""
    ids = torch.full((len(texts), context), tokenizer.padding, dtype=torch.int64)
    mask = torch.zeros(len(texts), context, dtype=torch.int64)
    lengths = []
    for row, text in enumerate(texts):
        pieces = tokenizer.pieces(text)
        kept = [tokenizer.start, *pieces[: context - 2], tokenizer.end]
        ids[row, : len(kept)] = torch.tensor(kept)
        mask[row, : len(kept)] = 1
        lengths.append(len(pieces) + 2)
    return Tokens(ids, mask, tuple(lengths))


def cleaned(text: str) -> str:
    """open_clip's cleaning: repaired by ftfy, entities undone twice, spaces joined, lower case."""
    import ftfy

    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


def clip_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """CLIP's 49,408 tokens by name, and the merges that make them."""
    from tokenizers.pre_tokenizers import ByteLevel

    packed = resources.files("headwater_rewards_clip").joinpath("data", "merges.txt.gz")
    lines = gzip.decompress(packed.read_bytes()).decode("utf-8").splitlines()
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters)]
    words += [left + right for left, right in merges]
    return {word: i for i, word in enumerate([*words, _START, _END])}, merges


@attrs.frozen(eq=False)
class OpenClipTokenizer:
    """open_clip's and HPSv2's: the text is cleaned; a spelled-out `<end_of_text>` is the end."""

    start: int
    end: int
    size: int
    padding: int
    _split: Any
    _merge: Any

    @classmethod
    def of(cls, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]) -> OpenClipTokenizer:
        """From token numbers by name and merges in order."""
        import regex
        from tokenizers import Tokenizer as Backend
        from tokenizers import models, pre_tokenizers

        model = models.BPE(vocabulary, list(merges), end_of_word_suffix="</w>", unk_token=_END)
        merge = Backend(model)
        merge.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = regex.compile(_PIECES, regex.IGNORECASE)
        return cls(vocabulary[_START], vocabulary[_END], len(vocabulary), 0, split, merge)

    def pieces(self, text: str) -> list[int]:
        """Token numbers of the cleaned text."""
        special = {"<start_of_text>": [self.start], "<end_of_text>": [self.end]}
        out: list[int] = []
        for piece in self._split.findall(cleaned(text)):
            out += special.get(piece) or self._merge.encode(piece).ids
        return out


@attrs.frozen(eq=False)
class TransformersTokenizer:
    """transformers' own: lower case and joined spaces, nothing repaired."""

    start: int
    end: int
    size: int
    padding: int
    _tokenizer: Any

    @classmethod
    def of(cls, tokenizer: Any) -> TransformersTokenizer:
        """From a tokenizer of transformers. ValueError where it has no start or end."""
        start, end, padding = (
            getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")
        )
        if start is None or end is None:
            raise ValueError("the tokenizer has no start and end token, so it is not CLIP's")
        return cls(start, end, len(tokenizer), end if padding is None else padding, tokenizer)

    def pieces(self, text: str) -> list[int]:
        """Token numbers."""
        found = self._tokenizer(text, add_special_tokens=False, verbose=False)
        ids: list[int] = found["input_ids"]
        return ids


def load_tokenizer(source: str = "", *, clean: bool) -> Tokenizer:
    """A folder's or hub id's CLIP tokenizer, or CLIP's own where `source` is empty.

    clean: as open_clip does it. ValueError where the source is no CLIP tokenizer.
    """
    from transformers import CLIPTokenizer

    if not source:
        vocabulary, merges = clip_vocabulary()
        if clean:
            return OpenClipTokenizer.of(vocabulary, merges)
        return TransformersTokenizer.of(CLIPTokenizer(vocab=vocabulary, merges=merges))
    folder = Path(source).expanduser()
    if folder.is_dir() and not holds_tokenizer(folder):  # transformers would make up one
        raise ValueError(f"{source} holds no CLIP tokenizer: no tokenizer.json, no vocab.json")
    try:
        made = CLIPTokenizer.from_pretrained(str(folder) if folder.is_dir() else source)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ValueError(f"{source} holds no CLIP tokenizer: {lines[0][:300]}") from error
    if not clean:
        return TransformersTokenizer.of(made)
    import json

    model = json.loads(made.backend_tokenizer.to_str())["model"]
    pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
    merges = [(left, right) for left, right in pairs]
    return OpenClipTokenizer.of(made.get_vocab(), merges)


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder brings a tokenizer of its own."""
    return (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
