"""GenEval over HTTP: metadata, answers, and its own file."""

import base64
import io
import json

import pytest
from click.testing import CliRunner
from PIL import Image
from rewards_vlm.judge_cases import images, opened

from headwater import http_failures as failures
from headwater.types import Prompt
from headwater_rewards_vlm.command import command
from headwater_rewards_vlm.geneval import GenEval, metadata_problem, prompt_list
from support.scripted_server import Answer, serving

GENEVAL = {
    "tag": "position",
    "include": [
        {"class": "dog", "count": 1},
        {"class": "cat", "count": 2, "color": "red", "position": ["left of", 0]},
    ],
    "exclude": [{"class": "cat", "count": 3}],
}


def test_geneval_sends_its_metadata_and_reads_truth_or_fraction():
    def respond(_, payload):
        asked = payload["metadata"]
        return Answer({"correct": asked["prompt"] == "a", "score": 0.5, "reason": ""})

    prompts = tuple(Prompt(text, metadata=GENEVAL) for text in ("a", "b"))
    with serving(respond) as server:
        assert opened(GenEval, server.url).rate(images(2), prompts).tolist() == [1, 0]
        path, _, payload = server.requests[0]
        assert path == "/geneval"
        assert payload["metadata"] == {**GENEVAL, "prompt": payload["metadata"]["prompt"]}
        assert payload["image"]["format"] == "png"
        picture = Image.open(io.BytesIO(base64.b64decode(payload["image"]["base64"])))
        assert picture.size == (16, 16)
        fraction = opened(GenEval, server.url, measure="fraction")
        assert fraction.rate(images(2), prompts).tolist() == [0.5, 0.5]
    with serving(lambda *_: Answer({"correct": 1, "score": 1.5})) as server:
        for measure, why in (("correct", "wrong type"), ("fraction", "expected 0 to 1")):
            with pytest.raises(failures.InvalidReplyError, match=why):
                opened(GenEval, server.url, measure=measure).rate(images(2), prompts)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tag": "colour"}, "tag: expected one of"),
        ({"include": []}, "include: expected a list"),
        ({"include": "dog"}, "include: expected a list"),
        ({"include": [{"class": "dog"}]}, r"include\[0\]: count"),
        ({"include": [{"class": "dog", "count": True}]}, r"include\[0\]: count"),
        ({"include": [{"count": 1}]}, r"include\[0\]: class"),
        ({"include": ["dog"]}, r"include\[0\]: expected an object"),
        ({"include": [{"class": "d", "count": 1, "position": ["left of", 0]}]}, "object before it"),
        ({"exclude": [{"class": "d", "count": 0}]}, r"exclude\[0\]: count"),
    ],
)
def test_metadata_that_is_not_genevals_is_named(change, why):
    assert metadata_problem(GENEVAL) == ""
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(metadata_problem({**GENEVAL, **change}))


def test_genevals_own_file_becomes_a_prompt_list(tmp_path):
    source, target = tmp_path / "evaluation_metadata.jsonl", tmp_path / "geneval.jsonl"
    source.write_text(json.dumps({**GENEVAL, "prompt": "a photo of cats left of a dog"}) + "\n\n")
    made = CliRunner().invoke(command, [str(source), str(target)])
    assert made.exit_code == 0 and "1 prompts" in made.output
    (record,) = [json.loads(line) for line in target.read_text().splitlines()]
    assert record == {"prompt": "a photo of cats left of a dog", "metadata": GENEVAL}
    again = CliRunner().invoke(command, [str(source), str(target)])
    assert again.exception.exit_code == 2
    for text, why in (
        ("{", "line 1 is no JSON"),
        ("[]", "line 1: expected an object"),
        (json.dumps({"prompt": "a", "tag": "x"}), "line 1: tag"),
        ("\n", "holds no prompt"),
    ):
        source.write_text(text)
        with pytest.raises(ValueError, match=why):
            prompt_list(source)
