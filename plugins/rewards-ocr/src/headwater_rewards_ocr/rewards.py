"""The reward `ocr`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from headwater import hookimpl
from headwater.protocols import LoadContext
from headwater.types import Batch, Prompt
from headwater.validators import in_range
from headwater_rewards_ocr.accuracy import accuracy_of_parts, comparable
from headwater_rewards_ocr.quotes import quoted_parts
from headwater_rewards_ocr.reader import Reader

if TYPE_CHECKING:
    from headwater.composition import Run

WIDEST = 8
"""Long side over short side. The engine enlarges short sides, so thin pictures grow huge."""


@attrs.define(eq=False)
class Ocr:
    """How much of the text that a prompt quotes is in the image: 1 all of it, 0 nothing.

    1 - min(d, len) / len, with d the edit distance of the text read to the quoted one, after white
    space is removed; `parts = "first"` is the form of Flow-GRPO (arXiv 2505.05470). It is read by
    RapidOCR (PP-OCRv4, Chinese and English) on the CPU. Flow-GRPO reads with PaddleOCR; scores
    differ where the two engines do.
    """

    differentiable: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True
    margin: ClassVar[float | None] = None

    parts: Literal["all", "first"] = "all"
    """Quoted parts of a prompt that must be rendered. Of two to four the best order counts."""
    surplus: Literal["free", "counted"] = "free"
    """Whether text that contains the target scores 1 whatever else is read, or every surplus
    character counts as an error."""
    case: Literal["ignored", "kept"] = "ignored"
    """Whether capital letters are compared as such."""
    confidence: float = attrs.field(default=0.5, validator=in_range(0, 1))
    """Lines that the engine is less sure of are not read."""
    engines: int = attrs.field(default=1, validator=in_range(1, 64))
    """Images read side by side."""
    threads: int = attrs.field(default=0, validator=in_range(0, 256))
    """Threads of an engine; 0 for torch's own number, dealt to the engines."""
    _reader: Reader = attrs.field(init=False, default=None)

    def problems(self, run: Run) -> Sequence[str]:
        """Prompts of the run without a quoted text. A held-out reward scores only evaluations."""
        lists = {"[evaluation] prompts": run.evaluation_prompts}
        if any(named.plugin is self for named in run.rewards.values()):
            lists = {"[prompts] file": run.prompts, **lists}
        found = [self._unquoted(where, prompts) for where, prompts in lists.items()]
        found.append(_too_thin(run.file.rollout.height, run.file.rollout.width))
        return [text for text in found if text]

    def load(self, context: LoadContext) -> None:
        """Build the engines, on the CPU whatever the device."""
        threads = self.threads or max(1, torch.get_num_threads() // self.engines)
        self._reader = Reader(self.engines, threads, self.confidence)
        self._reader.load()

    @hookimpl
    def score(self, images: Tensor, batch: Batch) -> Tensor:
        """(B,) float32 in [0, 1]; NaN for an image that is not finite. images: (B, 3, H, W)."""
        if fault := _too_thin(*images.shape[-2:]):
            raise ValueError(fault)
        targets = [self._target(prompt) for prompt in batch.prompts]
        finite = torch.isfinite(images.detach()).flatten(1).all(dim=1).cpu()
        texts = self._reader.read(torch.nan_to_num(images.detach()))
        pairs = zip(texts, targets, strict=True)
        scores = torch.tensor([self._accuracy(text, target) for text, target in pairs])
        return torch.where(finite, scores, torch.nan).to(images.device)

    def _accuracy(self, text: str, target: Sequence[str]) -> float:
        read = comparable(text, keep_case=self.case == "kept")
        return accuracy_of_parts(read, target, surplus=self.surplus == "free")

    def _target(self, prompt: Prompt) -> tuple[str, ...]:
        """The parts as they are compared. ValueError for a prompt that quotes nothing."""
        parts = [comparable(p, keep_case=self.case == "kept") for p in quoted_parts(prompt.text)]
        if not parts:
            raise ValueError(f"ocr needs a text in quotation marks, the prompt is {prompt.text!r}")
        return tuple(parts if self.parts == "all" else parts[:1])

    @staticmethod
    def _unquoted(where: str, prompts: Sequence[Prompt]) -> str:
        without = [prompt.text for prompt in prompts if not quoted_parts(prompt.text)]
        if not without:
            return ""
        return (
            f"{len(without)} of the {len(prompts)} prompts of {where} have no text in quotation "
            f"marks, so there is nothing to read; the first is {without[0]!r}"
        )


def _too_thin(height: int, width: int) -> str:
    if max(height, width) <= WIDEST * min(height, width):
        return ""
    return f"ocr reads images of at most {WIDEST} to 1, got {height} x {width}"
