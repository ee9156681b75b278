"""The rewards `unifiedreward` and `vlm-judge`: a model behind an OpenAI-style API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from headwater.errors import PluginError
from headwater.protocols import LoadContext
from headwater.types import Prompt
from headwater.validators import at_least, in_range
from headwater_rewards_vlm.service import HttpReward
from headwater_rewards_vlm.verdicts import ASPECTS, PLACE, labelled_score, read_template, said

if TYPE_CHECKING:
    from headwater.composition import Run

_OURS = ("model", "messages", "temperature", "max_tokens", "n", "stream")


def _not_ours(_: Any, __: Any, value: Mapping[str, Any]) -> None:
    taken = [key for key in value if key in _OURS]
    if taken:
        raise ValueError(f"{taken[0]!r} is set by its own key, or fixed; leave it out of extra")


def _worded(_: Any, __: Any, value: str) -> None:
    if not value.strip():
        raise ValueError("expected a word, got an empty text")


@attrs.define(eq=False)
class Judge(HttpReward):
    """One user turn with image and text, and a number read from the answer."""

    path: ClassVar[str] = "/chat/completions"

    model: str = attrs.field(kw_only=True, validator=_worded)
    """Name under which the server knows the model."""
    template: str = ""
    """UTF-8 file of the question, with {prompt}; empty for the shipped wording."""
    temperature: float = attrs.field(default=0.0, validator=in_range(0, 2))
    """Of the judge's sampling; 0 is greedy."""
    max_tokens: int = attrs.field(default=4096, validator=at_least(1))
    """Longest answer."""
    extra: Mapping[str, Any] = attrs.field(factory=dict, validator=_not_ours)
    """More fields of the request, as the server takes them."""

    _text: str = attrs.field(init=False, default="")

    @property
    def shipped(self) -> str:
        """Name of the shipped template."""
        raise NotImplementedError

    def problems(self, run: Run) -> list[str]:
        """A template that cannot be used, or a token that is not there."""
        found = super().problems(run)
        try:
            read_template(self.template, self.shipped)
        except ValueError as error:
            found.append(f"template: {error}")
        return found

    def load(self, context: LoadContext) -> None:
        """Read the template and make the client."""
        super().load(context)
        try:
            self._text = read_template(self.template, self.shipped)
        except ValueError as error:
            raise PluginError(f"template: {error}") from None

    def payload(self, data: str, prompt: Prompt) -> Any:
        """A chat completion: the image first, then the text."""
        image = {"url": f"data:image/{self.picture};base64,{data}"}
        content = [
            {"type": "image_url", "image_url": image},
            {"type": "text", "text": self._text.replace(PLACE, prompt.text)},
        ]
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **self.extra,
        }


@attrs.define(eq=False)
class UnifiedReward(Judge):
    """UnifiedReward (Wang et al., arXiv 2503.05236): points from 1 to 5."""

    paper: ClassVar[str] = "arXiv 2503.05236"

    aspect: Literal["overall", "alignment", "coherence", "style"] = "overall"
    """The line that is read: `Final Score:`, or one of UnifiedReward-2.0's three."""
    scale: Literal["points", "fraction"] = "points"
    """1 to 5, or that over 5."""

    @property
    def shipped(self) -> str:
        """Two wordings: one score, or three."""
        return "unified_overall.txt" if self.aspect == "overall" else "unified_aspects.txt"

    def read(self, answer: Any) -> float:
        """The aspect's number."""
        points = labelled_score(said(answer), ASPECTS[self.aspect], 1, 5)
        return points if self.scale == "points" else points / 5


@attrs.define(eq=False)
class VlmJudge(Judge):
    """Any vision-language model as a judge, by a question of your own."""

    label: str = attrs.field(default="Score", validator=_worded)
    """The number after it and a colon is the score."""
    low: float = 0.0
    """Least score that the question allows."""
    high: float = 10.0
    """Highest score that the question allows."""
    scale: Literal["points", "fraction"] = "points"
    """As the judge gives it, or 0 at `low` and 1 at `high`."""

    def __attrs_post_init__(self) -> None:
        """ValueError where the range is empty."""
        if not self.low < self.high:
            raise ValueError(f"high: expected a number above low = {self.low}, got {self.high}")
        changed = (self.label, self.low, self.high) != ("Score", 0.0, 10.0)
        if changed and not self.template:
            raise ValueError(
                "template: the shipped question asks for 'Score: N' from 0 to 10; other labels and "
                "ranges need a question of their own"
            )

    @property
    def shipped(self) -> str:
        """One wording."""
        return "judge.txt"

    def read(self, answer: Any) -> float:
        """The number after the label."""
        points = labelled_score(said(answer), self.label, self.low, self.high)
        span = self.high - self.low
        return points if self.scale == "points" else (points - self.low) / span
