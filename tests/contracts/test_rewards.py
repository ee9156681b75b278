"""Every installed reward passes its contract: on files of tiny models, and on real servers."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from rewards_clip.clip_cases import random_checkpoint, save_tokenizer, tiny
from rewards_remote import served
from rewards_vlm import hpsv3_cases, imagereward_cases
from rewards_vlm.judge_cases import completion, sent_picture
from safetensors.torch import save_file

from headwater.testing import RewardContract
from headwater.types import Prompt
from support.scripted_server import Answer, serving

SENTENCES = ("a red circle on a white background", "a blue square on a grey background")
GENEVAL = {"tag": "single_object", "include": [{"class": "dog", "count": 1}]}


class OnTiny(RewardContract):
    """Judges images of 32 x 32 of the tiny model's prompts."""

    prompts = SENTENCES
    run_prompts = SENTENCES
    run_tables = {
        "backbone": {"use": "tiny"},
        "rollout": {"height": 32, "width": 32, "steps": 2},
    }


class TestTinyPreference(OnTiny):
    name = "tiny-preference"


class TestTinyPreferenceInFloat64(OnTiny):
    name = "tiny-preference"
    settings = {"dtype": "float64"}


class TestTinyDetector(OnTiny):
    name = "tiny-detector"


class TestTinyJpegSize(OnTiny):
    name = "tiny-jpeg-size"


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """Settings of the CLIP rewards for a small model of random weights."""
    import attrs

    folder = tmp_path_factory.mktemp("contract-clip")
    sizes = tiny(vocabulary=save_tokenizer(folder / "tokenizer"))
    save_file(random_checkpoint(sizes, 11), folder / "small.safetensors")
    return {
        "model": str(folder / "small.safetensors"),
        "tokenizer": str(folder / "tokenizer"),
        "architecture": attrs.asdict(sizes),
        "dtype": "float64",
    }


class ClipContract(RewardContract):
    def settings(self, clip):
        return clip


class TestHps(ClipContract):
    name = "hpsv2.1"


class TestPickScore(ClipContract):
    name = "pickscore"


class TestClipScore(ClipContract):
    name = "clipscore"


class TestAesthetic(RewardContract):
    name = "aesthetic"

    def settings(self, clip, tmp_path_factory):
        import torch

        folder = tmp_path_factory.mktemp("contract-head")
        generator = torch.Generator().manual_seed(2)
        sizes = {0: (1024, 16), 2: (128, 1024), 4: (64, 128), 6: (16, 64), 7: (1, 16)}
        head = {}
        for place, shape in sizes.items():
            drawn = torch.randn(shape, generator=generator) * shape[1] ** -0.5
            head[f"layers.{place}.weight"] = drawn
            head[f"layers.{place}.bias"] = torch.zeros(shape[0])
        save_file(head, folder / "head.safetensors")
        plain = {key: value for key, value in clip.items() if key != "tokenizer"}
        return {**plain, "head": str(folder / "head.safetensors")}


class TestImageReward(RewardContract):
    name = "imagereward"

    def settings(self, tmp_path_factory):
        import attrs

        model, words = imagereward_cases.write(tmp_path_factory.mktemp("contract-blip"))
        sizes = attrs.asdict(imagereward_cases.SIZES)
        return {"model": str(model), "vocabulary": str(words), "architecture": sizes}


class TestHpsv3(RewardContract):
    name = "hpsv3"
    size = (56, 84)
    tolerance = 1e-3

    def settings(self, tmp_path_factory):
        small = hpsv3_cases.Small(tmp_path_factory.mktemp("contract-hpsv3"))
        return {
            "model": str(small.folder / "HPSv3.safetensors"),
            "base": str(small.folder / "base"),
            "instruction": str(small.folder / "instruction.txt"),
            "instruction_sha256": hpsv3_cases.DIGEST,
            "pixels": 16 * 28 * 28,
            "dtype": "float32",
        }


def marked(_, payload):
    """The mark is the mean level of the picture."""
    _, picture = sent_picture(payload)
    return completion(f"Final Score: {1 + float(np.asarray(picture).mean()) / 64:.4f}")


@pytest.fixture(scope="session")
def judge():
    with serving(marked) as server:
        yield server.url + "/v1"


class TestUnifiedReward(RewardContract):
    name = "unifiedreward"

    def settings(self, judge):
        return {"server": judge, "model": "m"}


class TestVlmJudge(TestUnifiedReward):
    name = "vlm-judge"

    def settings(self, judge, tmp_path_factory):
        file = tmp_path_factory.mktemp("question") / "question.txt"
        file.write_text("How well does the image show: {prompt}? End with 'Final Score: N'.")
        return {"server": judge, "model": "m", "template": str(file), "label": "Final Score"}


def right(_, payload):
    picture = Image.open(io.BytesIO(base64.b64decode(payload["image"]["base64"])))
    level = float(np.asarray(picture).mean())
    return Answer({"correct": level > 127, "score": level / 255, "reason": ""})


@pytest.fixture(scope="session")
def geneval():
    with serving(right) as server:
        yield server.url


class TestGenEval(RewardContract):
    name = "geneval"
    prompts = tuple(Prompt(text, metadata=GENEVAL) for text in ("a dog", "one dog"))

    def settings(self, geneval):
        return {"server": geneval, "measure": "fraction"}

    def run_file(self, plugin, table, folder, **output):
        import json

        path = super().run_file(plugin, table, folder, **output)
        lines = [json.dumps({"prompt": p.text, "metadata": GENEVAL}) for p in self.prompts]
        (folder / "prompts.jsonl").write_text("\n".join(lines))
        path.write_text(path.read_text().replace("prompts.txt", "prompts.jsonl"))
        return path


@pytest.mark.long
class TestOcr(RewardContract):
    name = "ocr"
    size = (64, 96)
    prompts = ('a sign that says "OPEN"', 'a sign that says "NO 7"')
    run_prompts = prompts


@pytest.fixture(scope="session")
def remote(tmp_path_factory):
    with served.serving(tmp_path_factory.mktemp("contract-served")) as server:
        yield server.url


@pytest.mark.long
class TestRemote(OnTiny):
    name = "remote"

    def settings(self, remote):
        return {"url": remote, "reward": "detector"}


class TestColourfulness(RewardContract):
    name = "colourfulness"
