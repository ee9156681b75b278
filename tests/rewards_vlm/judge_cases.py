"""Images, prompts and answers for rewards over HTTP."""

import base64
import io

import torch
from PIL import Image

from headwater.protocols import LoadContext
from headwater.types import Prompt
from headwater_rewards_vlm.geneval import GenEval
from support.scripted_server import Answer

PROMPTS = (Prompt("a red cat"), Prompt("a blue dog"), Prompt("a tree"))


def images(count=3, size=16):
    """Image i is of the level i / 10, so that a server can tell which it was sent."""
    levels = torch.arange(count) / 10
    return levels.view(-1, 1, 1, 1).expand(count, 3, size, size).contiguous()


def completion(text, **more):
    return Answer({"choices": [{"message": {"role": "assistant", "content": text}, **more}]})


def opened(kind, url, **settings):
    fast = {"timeout": 2.0, "deadline": 4.0, "retries": 1}
    named = {} if kind is GenEval else {"model": "judge-1"}
    made = kind(server=url, **{**fast, **named, **settings})
    made.load(LoadContext("cpu"))
    return made


def sent_picture(payload):
    url = payload["messages"][0]["content"][0]["image_url"]["url"]
    head, data = url.split(",")
    return head, Image.open(io.BytesIO(base64.b64decode(data)))
