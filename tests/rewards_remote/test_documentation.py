"""docs/rewards.md says what the code does: settings, options, errors, and its own examples."""

import json
import re
from pathlib import Path

import attrs
import pytest

from headwater.settings import settings_of
from headwater_rewards_ocr.rewards import Ocr
from headwater_rewards_remote import application
from headwater_rewards_remote.command import command
from headwater_rewards_remote.protocol import request_of
from headwater_rewards_remote.reward import Remote

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
OCR = (ROOT / "plugins" / "rewards-ocr" / "README.md").read_text(encoding="utf-8")


def rows(text):
    """First cell of every table row: its second."""
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[1].strip() for row in cells if len(row) > 1}


def shown(value):
    return f'`"{value}"`' if isinstance(value, str) else f"{value:g}"


def test_every_setting_of_remote_is_in_the_table_with_its_default():
    for field in settings_of(Remote):
        default = "" if field.default is attrs.NOTHING else shown(field.default)
        assert rows(TEXT)[f"`{field.name}`"] == default


def test_every_setting_of_ocr_is_in_its_readme_with_its_default():
    table = {name: d for names, d in rows(OCR).items() for name in names.split(", ")}
    for field in settings_of(Ocr):
        assert shown(field.default) in table[f"`{field.name}`"]


def test_every_option_of_the_server_is_in_the_table_with_its_default():
    table = {}
    for names, default in rows(TEXT).items():
        if names.startswith("`--"):
            options = re.findall(r"--[\w-]+", names)
            table.update(zip(options, default.split(", "), strict=len(default.split(", ")) > 1))
            table.update({option: default for option in options if option not in table})
    offered = {p.opts[0]: p.default for p in command.params if p.opts[0].startswith("--")}
    assert set(table) == set(offered)
    for option, default in offered.items():
        if isinstance(default, int) and not isinstance(default, bool):
            assert table[option] == str(default)
    assert table["--host"] == offered["--host"]


def test_every_refusal_is_in_the_table_with_its_status():
    source = Path(application.__file__).read_text(encoding="utf-8")
    raised = set(re.findall(r'Refusal\((\d+), "([\w-]+)"', source))
    listed = re.findall(r"^\| ([\d, ]+) \| `([\w-]+)` \|", TEXT, re.MULTILINE)
    told = {(status, kind) for some, kind in listed for status in some.split(", ")}
    assert raised <= told
    assert told - raised == {("404", "no-such-path"), ("405", "no-such-path")}


def test_the_examples_are_json_and_the_request_is_one():
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
    (request,) = [block for block in blocks if "prompts" in block]
    request["images"]["data"] = "A" * 4 * (3 * 32 * 32 * 4 // 3)
    asked = request_of(json.dumps(request).encode(), 1024)
    assert asked.rewards == ("detector",)
    assert asked.images.shape == (1, 3, 32, 32)
    with pytest.raises(ValueError, match="pixels"):
        request_of(json.dumps(request).encode(), 1023)
