"""The reward `geneval`: a server that runs GenEval's detector and rules (arXiv 2310.11513).

GenEval's prompts carry what must be seen: `tag`, `include` and perhaps `exclude`, lists of objects
with `class`, `count`, `color` and `position`. They travel as the metadata of a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from headwater.types import Prompt
from headwater_rewards_vlm.service import HttpReward, field

if TYPE_CHECKING:
    from headwater.composition import Run

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
RELATIONS = ("left of", "right of", "above", "below")


@attrs.define(eq=False)
class GenEval(HttpReward):
    """GenEval over HTTP: POST /geneval with picture and metadata, see the README."""

    path: ClassVar[str] = "/geneval"
    paper: ClassVar[str] = "arXiv 2310.11513"

    measure: Literal["correct", "fraction"] = "correct"
    """1 where everything asked for is right and else 0, or the fraction of it that is."""

    def problems(self, run: Run) -> list[str]:
        """Prompts without GenEval's metadata, among those that this reward will see."""
        found = super().problems(run)
        trained = any(named.plugin is self for named in run.rewards.values())
        lists = [("[evaluation] prompts", run.evaluation_prompts)]
        if trained:
            lists.insert(0, ("[prompts] file", run.prompts))
        for where, prompts in lists:
            wrong = [(p, problem) for p in prompts if (problem := metadata_problem(p.metadata))]
            if wrong:
                prompt, problem = wrong[0]
                found.append(
                    f"{where}: {len(wrong)} of {len(prompts)} prompts have no metadata of GenEval, "
                    f"first {prompt.text[:60]!r}: {problem}; `headwater geneval-prompts` makes a "
                    f"list of GenEval's own file"
                )
        return found

    def payload(self, data: str, prompt: Prompt) -> Any:
        """Picture and metadata, the prompt's text among it as in GenEval's own records."""
        return {
            "image": {"format": self.picture, "base64": data},
            "metadata": {**prompt.metadata, "prompt": prompt.text},
        }

    def read(self, answer: Any) -> float:
        """`correct` is a truth value, `score` the fraction."""
        if self.measure == "correct":
            return float(field(answer, "correct", bool))
        value = float(field(answer, "score", (int, float)))
        if not 0 <= value <= 1:
            raise ValueError(f"'score' is {value:g}, expected 0 to 1")
        return value


def metadata_problem(metadata: Mapping[str, Any]) -> str:
    """What is wrong with a prompt's metadata; empty if nothing is."""
    if metadata.get("tag") not in TAGS:
        return f"tag: expected one of {', '.join(TAGS)}, got {metadata.get('tag')!r}"
    included = metadata.get("include")
    if not isinstance(included, Sequence) or isinstance(included, str) or not included:
        return f"include: expected a list of objects, got {included!r}"
    excluded = metadata.get("exclude", [])
    if not isinstance(excluded, Sequence) or isinstance(excluded, str):
        return f"exclude: expected a list of objects, got {excluded!r}"
    for kind, things in (("include", included), ("exclude", excluded)):
        for index, thing in enumerate(things):
            problem = _thing_problem(thing, index)
            if problem:
                return f"{kind}[{index}]: {problem}"
    return ""


def _thing_problem(thing: Any, index: int) -> str:
    """One object; a position refers to an object before it."""
    if not isinstance(thing, Mapping):
        return f"expected an object, got {thing!r}"
    count = thing.get("count")
    if not isinstance(thing.get("class"), str) or not thing["class"]:
        return f"class: expected a name, got {thing.get('class')!r}"
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return f"count: expected a whole number of at least 1, got {count!r}"
    if "color" in thing and not isinstance(thing["color"], str):
        return f"color: expected a name, got {thing['color']!r}"
    place = thing.get("position")
    if place is None:
        return ""
    pair = isinstance(place, Sequence) and not isinstance(place, str) and len(place) == 2
    if not pair or place[0] not in RELATIONS or place[1] not in range(index):
        return f"position: expected [relation, number of an object before it], got {place!r}"
    return ""


def prompt_list(source: str | Path) -> list[dict[str, Any]]:
    """Records of a prompt list from GenEval's own file. ValueError names the line."""
    records = []
    try:
        lines = Path(source).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{source} line {number} is no JSON: {error}") from None
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
            raise ValueError(f"{source} line {number}: expected an object with a text 'prompt'")
        metadata = {key: value for key, value in record.items() if key != "prompt"}
        if problem := metadata_problem(metadata):
            raise ValueError(f"{source} line {number}: {problem}")
        records.append({"prompt": record["prompt"], "metadata": metadata})
    if not records:
        raise ValueError(f"{source} holds no prompt")
    return records
