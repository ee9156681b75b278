"""The reward `hpsv3`: HPSv3, a Qwen2-VL that reads image, instruction and prompt."""

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
from headwater.validators import at_least
from headwater_rewards_vlm import preprocessing, qwen, weights

if TYPE_CHECKING:
    from headwater.composition import Run

MODEL = weights.Release("MizzenAI/HPSv3", "HPSv3.safetensors", "about 17 GB in bfloat16")
BASE = "Qwen/Qwen2-VL-7B-Instruct"
INSTRUCTION_SHA256 = "f6ee57479d4e9eee76b49c00dc962e1e696a5a2b3cc32cebd9b1fa76fe27502c"
"""Of the released text: INSTRUCTION and prompt_with_special_token, one after the other, 2,590
characters with `{text_prompt}` where the prompt goes."""
HOW_TO_GET_INSTRUCTION = (
    "The instruction is part of HPSv3's input and is not shipped here. It is in the package hpsv3 "
    "1.0.0 (`pip download --no-deps hpsv3==1.0.0`), hpsv3/dataset/data_collator_qwen.py: write "
    "INSTRUCTION and prompt_with_special_token, one after the other and unchanged, into a UTF-8 "
    "file; the README has the command."
)


@attrs.define(eq=False)
class Hpsv3:
    """HPSv3 (Ma et al., arXiv 2508.03789): its mu, about -5 to 15."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = 15.0
    paper: ClassVar[str] = "arXiv 2508.03789"

    instruction: str
    """UTF-8 file of the text that stands beside the image, with {text_prompt} and <|Reward|>."""
    instruction_sha256: str = INSTRUCTION_SHA256
    """Checked, so that no other text is scored by mistake; give your own text's to use it."""
    model: str = MODEL.hub
    """HPSv3.safetensors, a folder that holds it, or a hub id."""
    base: str = BASE
    """Folder or hub id of the base model: its configuration and tokenizer, not its weights."""
    pixels: int = attrs.field(default=256 * 28 * 28, validator=at_least(28 * 28))
    """Pixels an image is resized to, both sides multiples of 28."""
    rounding: preprocessing.Rounding = "none"
    """"none" resizes the float image; "pillow" the 8-bit picture, as the original does. The
    gradient is always that of "none"."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "bfloat16"
    """Of the weights; the head is at least float32."""

    _network: Any = attrs.field(init=False, default=None)
    _tokenizer: Any = attrs.field(init=False, default=None)
    _text: str = attrs.field(init=False, default="")

    def problems(self, run: Run) -> list[str]:
        """A wrong path or instruction, before weights load. The hub is not asked."""
        found = weights.problem_of(self.model, MODEL)
        problems = [f"model: {found}"] if found else []
        try:
            read_instruction(self.instruction, self.instruction_sha256)
        except ValueError as error:
            problems.append(f"instruction: {error}")
        if (
            weights.is_path(self.base)
            and not (Path(self.base).expanduser() / "config.json").exists()
        ):
            problems.append(f"base: no config.json in {self.base!r}")
        return problems

    def load(self, context: LoadContext) -> None:
        """Load the frozen network. PluginError says in one paragraph what is missing or wrong."""
        try:
            self._text = read_instruction(self.instruction, self.instruction_sha256)
            base = base_folder(self.base)
            path = weights.local_file(self.model, MODEL)
            network = qwen.network_from_state(
                read_tensors(path), base, getattr(torch, self.dtype), str(path)
            )
            rows = network.model.config.text_config.vocab_size
            self._tokenizer = qwen.tokenizer_of(base, rows)
        except ValueError as error:
            raise PluginError(str(error)) from error
        self._network = network.to(context.device)

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) scores, differentiable in images (B, 3, H, W)."""
        return self.rate(images, [prompt.text for prompt in batch.prompts])

    def rate(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """(B,) mu of images (B, 3, H, W), which are clamped to [0, 1], and their B prompts."""
        return self.mu_sigma(images, texts)[:, 0].to(images.device)

    def mu_sigma(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """(B, 2) what the head gives."""
        if self._network is None:
            raise ValueError("hpsv3 is not loaded; call load first")
        if len(texts) != len(images):
            raise ValueError(f"expected a prompt an image, got {len(texts)} for {len(images)}")
        device = self._network.rm_head[0].weight.device
        vision = self._network.model.config.vision_config
        height, width = images.shape[-2:]
        factor = vision.patch_size * vision.spatial_merge_size
        size = preprocessing.qwen_size(height, width, self.pixels, factor)
        patches = preprocessing.qwen_patches(
            images.to(device).clamp(0, 1),
            size,
            rounding=self.rounding,
            patch=vision.patch_size,
            merge=vision.spatial_merge_size,
            frames=vision.temporal_patch_size,
        )
        grid = torch.tensor([[1, *(side // vision.patch_size for side in size)]] * len(images))
        ids, mask, places = self._tokens(texts, patches.shape[1] // vision.spatial_merge_size**2)
        out: Tensor = self._network(
            ids.to(device),
            mask.to(device),
            patches.flatten(0, 1),
            grid.to(device),
            places.to(device),
        )
        return out

    def _tokens(self, texts: Sequence[str], count: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids and mask (B, L), and the reward token's place (B,). count: image tokens."""
        tokenizer = self._tokenizer
        image = self._network.model.config.image_token_id
        reward = tokenizer.convert_tokens_to_ids(qwen.REWARD_TOKEN)
        word = tokenizer.convert_ids_to_tokens(image)
        turns = [
            qwen.turn(
                tokenizer,
                self._text.replace("{text_prompt}", qwen.harmless(text)),
                word,
                count,
            )
            for text in texts
        ]
        ids, mask = qwen.batch_of(tokenizer, turns, tokenizer.pad_token_id or 0)
        hits = ids == reward
        if not bool((hits.sum(dim=1) == 1).all()):
            raise ValueError(f"expected one {qwen.REWARD_TOKEN} in a turn")
        return ids, mask, hits.int().argmax(dim=1)


def read_instruction(name: str, digest: str) -> str:
    """The instruction, checked. ValueError says where it is to be had."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"no file {name!r}. {HOW_TO_GET_INSTRUCTION}")
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != digest.lower():
        raise ValueError(
            f"{name} has the SHA-256 {found}, expected {digest} (instruction_sha256). "
            f"{HOW_TO_GET_INSTRUCTION}"
        )
    text = data.decode("utf-8", errors="replace")
    for part in ("{text_prompt}", qwen.REWARD_TOKEN):
        if text.count(part) != 1:
            raise ValueError(f"{name} holds {part} {text.count(part)} times, expected once")
    return text


def base_folder(base: str) -> Path:
    """The folder of the base model's small files, from the hub where it is named by id."""
    if weights.is_path(base):
        return Path(base).expanduser()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(base, allow_patterns=["*.json", "*.txt", "*.jinja"]))
    except Exception as error:
        raise ValueError(
            f"{base} is no folder, and its configuration and tokenizer (12 MB, no weights) are "
            f"neither in the hub's cache nor could they be had from the hub "
            f"({type(error).__name__}: {weights.first_line(error)}). Where there is a network: `hf "
            f"download {base} --include '*.json' '*.txt' --local-dir FOLDER`; then set base to "
            f"FOLDER."
        ) from error
