"""Sixty broken run files: one clear message each, exit code 2, nothing written, no traceback."""

import pytest
from click.testing import CliRunner

from headwater.cli import main

# Text of the good file: what it is replaced by.
REPLACED = {
    "no closing bracket": ("[backbone]", "[backbone"),
    "no closing quote": ('name = "toy"', 'name = "toy'),
    "a table twice": ("[rollout]", "[prompts]"),
    "a key twice": ("seed = 3", "seed = 3\nseed = 4"),
    "a table inside itself": ("[rollout]", "[prompts.file]"),
    "no value": ("seed = 3", "seed ="),
    "a bare word": ("seed = 3", "seed = three"),
    "a date": ("seed = 3", "seed = 2026-01-01"),
    "a comma at the end": ("seed = 3", "seed = 3,"),
    "tabs and garbage": ("seed = 3", "\x00seed = 3"),
    "a name that leads away": ('name = "toy"', 'name = "../toy"'),
    "a name that is a number": ('name = "toy"', "name = 3"),
    "an absolute name": ('name = "toy"', 'name = "/toy"'),
    "a negative seed": ("seed = 3", "seed = -1"),
    "a seed too large": ("seed = 3", "seed = 99999999999999999999"),
    "a seed that is true": ("seed = 3", "seed = true"),
    "no steps left": ("steps = 4", "steps = 0"),
    "steps that are none": ("steps = 4", "steps = nan"),
    "steps as a list": ("steps = 4", "steps = [4]"),
    "no backbone": ('[backbone]\nuse = "toy"\n', ""),
    "a backbone without a plugin": ('use = "toy"\n', ""),
    "a backbone of no package": ('use = "toy"', 'use = "toi"'),
    "a backbone that is a number": ('use = "toy"', "use = 4"),
    "a backbone of another package": ('use = "toy"', 'use = "headwater-nowhere:toy"'),
    "a backbone that is a reward": ('use = "toy"', 'use = "toy-brightness"'),
    "an unknown key of a backbone": ('use = "toy"', 'use = "toy"\nrank = 3'),
    "no prompts": ('file = "prompts.txt"\n', ""),
    "prompts that are not there": ('file = "prompts.txt"', 'file = "none.txt"'),
    "prompts of no package": ('file = "prompts.txt"', 'file = "nowhere:train"'),
    "prompts that are a folder": ('file = "prompts.txt"', 'file = "."'),
    "no prompt a step": ("per_step = 4", "per_step = 0"),
    "half a prompt": ("per_step = 4", "per_step = 2.5"),
    "a misspelt key": ("per_step = 4", "per_steps = 4"),
    "an empty micro-batch": ("micro_batch = 4", "micro_batch = 0"),
    "a text for a number": ("micro_batch = 4", 'micro_batch = "4"'),
    "a rollout without steps": ("steps = 5", "steps = 0"),
    "a rollout of too many steps": ("steps = 5", "steps = 100000"),
    "negative guidance": ("height = 4", "height = 4\nguidance = -1.0"),
    "guidance without end": ("height = 4", "height = 4\nguidance = inf"),
    "no height": ("height = 4", "height = 0"),
    "an unknown type of storage": ("width = 4", 'width = 4\nstore = "int4"'),
    "no reward": ('[reward.brightness]\nuse = "toy-brightness"\n', ""),
    "a reward without a key": ("[reward.brightness]", "[reward]"),
    "a reward of no package": ('use = "toy-brightness"', 'use = "brightness"'),
    "a weight that is none": ('use = "toy-brightness"', 'use = "toy-brightness"\nweight = nan'),
    "a reward that has no gradient": ('use = "toy-brightness"', 'use = "toy-count"'),
    "no algorithm": ('[algorithm]\nuse = "toy-direct"\n', ""),
    "an algorithm that is an estimator": ('use = "toy-direct"', 'use = "toy-bptt"'),
    "updates it does not take": ('use = "toy-direct"', 'use = "toy-direct"\nupdates = 3'),
    "no estimator": ('[estimator]\nuse = "toy-bptt"\n', ""),
    "draws that do not divide": ('use = "toy-bptt"', 'use = "toy-bptt"\ndraws = 3'),
    "a rate of nothing": ("lr = 0.01", "lr = 0.0"),
    "a rate without end": ("lr = 0.01", "lr = inf"),
    "a moment decay of one": ("lr = 0.01", "betas = [0.9, 1.0]"),
    "an unknown schedule": ("lr = 0.01", 'schedule = "linear"'),
    "an evaluation that never comes": ("every = 2", "every = 0"),
    "held-out prompts that are not there": ('prompts = "eval.txt"', 'prompts = "test.txt"'),
    "a held-out reward with a weight": ('use = "toy-count"', 'use = "toy-count"\nweight = 1.0'),
    "a table nobody knows": ("[output]", "[outputs]"),
    "a tracker nobody knows": ("checkpoint_every = 2", 'trackers = ["papers"]'),
    "a checkpoint that never comes": ("checkpoint_every = 2", "checkpoint_every = 0"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_broken_run_file_is_explained(run_file, tmp_path, monkeypatch, name):
    old, new = REPLACED[name]
    path = run_file({old: new} if name != "a rollout without steps" else {"steps = 5": new})
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for command in (["check", str(path)], ["run", str(path), "--out", str(tmp_path / "out")]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2, f"{command[0]}: {result.output}"
        assert not isinstance(result.exception, Exception), result.exc_info
        assert result.output.startswith("Error: ")
        assert "Traceback" not in result.output
        assert len(result.output) < 2000
    made = [
        p for p in sorted(tmp_path.rglob("*")) if p not in before and "__pycache__" not in str(p)
    ]
    assert made == []


def test_there_are_sixty_of_them():
    assert len(REPLACED) >= 60


def test_a_run_file_that_is_no_text(tmp_path):
    path = tmp_path / "run.toml"
    for content in (b"\xff\xfe\x00", b"", b"[" * 5000, b'name = "' + b"x" * 200_000 + b'"'):
        path.write_bytes(content)
        result = CliRunner().invoke(main, ["check", str(path)])
        assert result.exit_code == 2
        assert result.output.startswith("Error: ")
        assert "Traceback" not in result.output
