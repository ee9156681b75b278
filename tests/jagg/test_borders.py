"""Input errors of runs with jagg: one clear message each, as for any estimator."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headwater.cli import main

FILE = str(Path(__file__).parents[2] / "plugins" / "jagg" / "examples" / "jagg.toml")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["rollout.height=30", "rollout.width=30"], "tiny makes images of 32 x 32, not 30 x 30"),
        (["rollout.steps=1"], "no step of a rollout of 1 is stochastic and trained"),
        (["algorithm.use=mix-grpo", "rollout.steps=3"], "a window of 4 steps does not fit into 2"),
        (["prompts.group=1"], "group"),
        (["engine.precision=bfloat16", "backbone.dtype=float64"], "autocast leaves alone"),
    ],
)
def test_check_explains(sets, said):
    arguments = [text for item in sets for text in ("--set", item)]
    result = CliRunner().invoke(main, ["check", FILE, *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["plan", "probe"])
@pytest.mark.parametrize("value", ["nan", "inf", "-5", "abc"])
def test_numbers_that_are_none_are_refused(command, value):
    option = "--memory" if command == "plan" else "--threshold"
    result = CliRunner().invoke(main, [command, FILE, option, value])
    assert result.exit_code == 2
    assert "Invalid value" in result.output


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(main, ["probe", FILE, "--plot", "probe.png"])
    assert result.exit_code == 2
    assert "headwater-jagg[plots]" in result.output
