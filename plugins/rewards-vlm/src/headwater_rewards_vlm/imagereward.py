"""The reward `imagereward`: ImageReward-v1.0, differentiable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.errors import PluginError
from headwater.protocols import LoadContext
from headwater.tensor_files import read_tensors
from headwater.types import Batch
from headwater_rewards_vlm import blip, preprocessing, weights

if TYPE_CHECKING:
    from headwater.composition import Run

MODEL = weights.Release("THUDM/ImageReward", "ImageReward.pt", "1.79 GB")
VOCABULARY = weights.Release(
    "google-bert/bert-base-uncased", "vocab.txt", "0.2 MB", key="vocabulary"
)
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
LENGTH = 35
"""Tokens of a prompt, its start and end among them; shorter ones are padded."""


@attrs.define(eq=False)
class ImageReward:
    """ImageReward-v1.0 (Xu et al., arXiv 2304.05977): about -2.3 to 2, the mean image near 0."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = True
    loads_on_meta: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2304.05977"

    model: str = MODEL.hub
    """ImageReward.pt or its safetensors form, a folder that holds it, or a hub id."""
    vocabulary: str = VOCABULARY.hub
    """vocab.txt of bert-base-uncased, a folder that holds it, or a hub id."""
    architecture: Literal["stated"] | blip.Sizes = "stated"
    """Sizes of the network; "stated" are the released one's."""
    scale: Literal["reward", "mlp"] = "reward"
    """The published reward, or the MLP's output before it is normalised."""
    rounding: preprocessing.Rounding = "none"
    """"none" is ReFL's path on the float image; "pillow" rounds and resizes as the original's
    scoring of pictures does. The gradient is always that of "none"."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Of the weights. Pixels are prepared and scores formed in at least float32."""

    _network: Any = attrs.field(init=False, default=None)
    _tokenizer: Any = attrs.field(init=False, default=None)
    _warned: set[str] = attrs.field(init=False, factory=set)

    @property
    def margin(self) -> float:
        """ReFL's, relu(2 - reward)."""
        return 2.0 if self.scale == "reward" else 2.0 * blip.STD + blip.MEAN

    @property
    def _sizes(self) -> blip.Sizes:
        return blip.Sizes() if isinstance(self.architecture, str) else self.architecture

    def problems(self, run: Run) -> list[str]:
        """Paths that are wrong, before weights load. Files on the hub are not looked up."""
        named = ((self.model, MODEL), (self.vocabulary, VOCABULARY))
        found = [(release.key, weights.problem_of(name, release)) for name, release in named]
        return [f"{key}: {problem}" for key, problem in found if problem]

    def load(self, context: LoadContext) -> None:
        """Load the frozen network. PluginError says in one paragraph what is missing or wrong."""
        dtype = getattr(torch, self.dtype)
        if context.device == "meta":
            self._network = blip.blank_network(self._sizes).to(dtype)
            return
        try:
            path = weights.local_file(self.model, MODEL)
            state = read_tensors(path)
            network = blip.network_from_state(state, self._sizes, dtype, str(path))
            self._tokenizer = self._load_tokenizer()
        except ValueError as error:
            raise PluginError(str(error)) from error
        self._network = network.to(context.device)
        self.tokens([prompt.text for prompt in context.prompts])  # warns now of long ones

    def _load_tokenizer(self) -> Any:
        path = weights.local_file(self.vocabulary, VOCABULARY)
        if isinstance(self.architecture, str):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != VOCABULARY_SHA256:
                raise ValueError(
                    f"{path} is not the vocabulary of bert-base-uncased: its SHA-256 is {digest}, "
                    f"expected {VOCABULARY_SHA256}. {VOCABULARY.how_to_get}"
                )
        return bert_tokenizer(path, self._sizes.vocabulary)

    def tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers and mask, both (B, 35); longer prompts are cut, with one warning."""
        pieces = [self._tokenizer(t, verbose=False)["input_ids"] for t in texts]
        ids = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, found in enumerate(pieces):
            kept = found if len(found) <= LENGTH else [*found[: LENGTH - 1], found[-1]]
            ids[row, : len(kept)], mask[row, : len(kept)] = torch.tensor(kept), 1
        cut = [i for i, found in enumerate(pieces) if len(found) > LENGTH]
        if cut:
            weights.warn_once(
                self._warned,
                "length",
                f"imagereward reads {LENGTH} tokens of a prompt: {len(cut)} of {len(texts)} are "
                f"cut, the first begins {texts[cut[0]][:60]!r}",
            )
        return ids, mask

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) scores, differentiable in images (B, 3, H, W)."""
        return self.rate(images, [prompt.text for prompt in batch.prompts])

    def rate(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """(B,) scores of images (B, 3, H, W), which are clamped to [0, 1], and their B prompts."""
        if self._network is None:
            raise ValueError("imagereward is not loaded; call load first")
        if len(texts) != len(images):
            raise ValueError(f"expected a prompt an image, got {len(texts)} for {len(images)}")
        weight = self._network.mlp[0].weight
        pixels = preprocessing.imagereward_pixels(
            images.to(weight.device).clamp(0, 1), self._sizes.image_size, rounding=self.rounding
        )
        if weight.is_meta:  # a plan has no tokens, and no mask can be read
            ids, mask = torch.zeros(len(texts), LENGTH, dtype=torch.int64, device="meta"), None
        else:
            ids, mask = (t.to(weight.device) for t in self.tokens(texts))
        out: Tensor = self._network(pixels.to(weight.dtype), ids, mask)
        out = out if out.dtype == torch.float64 else out.float()
        value = out if self.scale == "mlp" else (out - blip.MEAN) / blip.STD
        return value.to(images.device)


def bert_tokenizer(path: str | Path, rows: int) -> Any:
    """transformers' BertTokenizer of a vocab.txt. ValueError where it is none or has too many."""
    from transformers import BertTokenizer

    try:
        lines = Path(path).read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    vocabulary = {word.rstrip("\r"): i for i, word in enumerate(lines)}
    missing = [w for w in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if w not in vocabulary]
    if missing or vocabulary["[PAD]"] != 0:
        what = f"{', '.join(missing)} missing" if missing else "[PAD] is not its first line"
        raise ValueError(f"{path} is no vocabulary of BERT: {what}")
    if len(lines) > rows:
        raise ValueError(f"{path} has {len(lines)} tokens, the network knows {rows}")
    return BertTokenizer(vocab=vocabulary)
