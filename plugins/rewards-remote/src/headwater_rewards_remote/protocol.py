"""What a request says and what an answer says, in JSON. The documentation is docs/rewards.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor

from headwater.composition import Named
from headwater.settings import unstructure
from headwater.types import Prompt
from headwater_rewards_remote.pictures import decode

PROTOCOL = 1
"""Raised when a client of the old form would misread an answer."""
_REQUEST = ("rewards", "images", "prompts")
_PROMPT = {"text": str, "negative": str, "metadata": dict}


@attrs.frozen(eq=False)
class ScoreRequest:
    """B images to be judged."""

    rewards: tuple[str, ...]
    """Keys of the rewards that are asked."""
    images: Tensor
    """(B, 3, H, W) float32 in [0, 1]."""
    prompts: tuple[Prompt, ...]
    """(B)"""


def request_of(body: bytes, most_pixels: int) -> ScoreRequest:
    """A checked request. ValueError says in one sentence what is wrong."""
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected an object with the keys {', '.join(_REQUEST)}")
    for key in (*_REQUEST, *found):
        if key not in found or key not in _REQUEST:
            fault = "is missing" if key in _REQUEST else "is unknown"
            raise ValueError(f"the key {key!r} {fault}; keys: {', '.join(_REQUEST)}")
    keys = found["rewards"]
    if not isinstance(keys, list) or not keys or not all(isinstance(k, str) for k in keys):
        raise ValueError("rewards: expected a list of keys of this server's rewards")
    if len(set(keys)) != len(keys):
        raise ValueError("rewards: a key is listed twice")
    prompts = _prompts(found["prompts"])
    images = decode(found["images"], most_pixels)
    if len(images) != len(prompts):
        raise ValueError(f"expected one prompt an image, got {len(prompts)} for {len(images)}")
    return ScoreRequest(tuple(keys), images, prompts)


def prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    """One prompt of a request. Paths of input images stay behind: they mean nothing elsewhere."""
    return {
        "text": prompt.text,
        "negative": prompt.negative,
        "metadata": dict(prompt.metadata),
    }


def identity(named: Named) -> str:
    """A short hash of a reward's name, version and settings: other scores, another identity."""
    facts = [named.entry.distribution, named.entry.version, named.entry.name]
    said = json.dumps([*facts, unstructure(named.plugin)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _prompts(found: Any) -> tuple[Prompt, ...]:
    if not isinstance(found, list) or not found:
        raise ValueError('prompts: expected a list of objects such as {"text": "a cat"}')
    return tuple(_prompt(record, f"prompts[{i}]") for i, record in enumerate(found))


def _prompt(record: Any, where: str) -> Prompt:
    if not isinstance(record, Mapping) or not isinstance(record.get("text"), str):
        raise ValueError(f"{where}: expected an object with a text under 'text'")
    for key, value in record.items():
        if key not in _PROMPT:
            raise ValueError(f"{where}: unknown key {key!r}; keys: {', '.join(_PROMPT)}")
        if not isinstance(value, _PROMPT[key]):
            raise ValueError(f"{where}.{key}: expected a {_PROMPT[key].__name__}")
    return Prompt(record["text"], record.get("negative", ""), metadata=record.get("metadata", {}))


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")
