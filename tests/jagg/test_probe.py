"""`headwater probe`: its numbers, its routed fraction, its files and its refusals."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headwater.cli import main
from headwater.errors import InputError
from headwater_jagg.probe import probe, routed_fraction

FILE = Path(__file__).parents[2] / "plugins" / "jagg" / "examples" / "jagg.toml"
SMALL = [
    "rollout.steps=7",
    "rollout.guidance=1.0",
    "prompts.per_step=2",
    "prompts.group=3",
    "prompts.micro_batch=6",
]


def test_groups_with_a_node_at_every_step_are_exact():
    found = probe(FILE, [*SMALL, "estimator={use='jagg',window=2}"], rollouts=1)
    assert [g["steps"] for g in found["groups"]] == [[0, 1], [2, 3], [4, 5]]
    for group in found["groups"]:
        assert group["cosine"]["mean"] == pytest.approx(1, abs=1e-9)
        assert group["relative_error"]["mean"] < 1e-6
    assert found["routed"] == 1


def test_longer_groups_are_not_exact_and_dropping_the_middle_is_worse():
    linear = probe(FILE, [*SMALL, "estimator={use='jagg',window=6}"], rollouts=2)
    dropped = probe(FILE, [*SMALL, "estimator={use='jagg',window=6,interpolate='none'}"], 2)
    (first,), (second,) = linear["groups"], dropped["groups"]
    assert first["cosine"]["mean"] < 0.9999
    assert first["relative_error"]["mean"] < second["relative_error"]["mean"]
    assert first["cosine"]["se"] > 0


def test_the_routed_fraction_is_that_of_the_noisy_end():
    assert routed_fraction([0.95, 0.92, 0.8, 0.99], 0.9) == 0.5
    assert routed_fraction([0.8, 0.99], 0.9) == 0
    assert routed_fraction([0.99, 0.99], 0.9) == 1


def test_the_command_prints_json_and_draws(tmp_path):
    sets = [part for text in SMALL for part in ("--set", text)]
    picture = tmp_path / "probe.png"
    command = ["probe", str(FILE), *sets, "--rollouts", "1", "--json", "--plot", str(picture)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found["groups"]) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_of_another_estimator_is_refused():
    with pytest.raises(InputError, match="probe measures jagg, got 'exact'"):
        probe(FILE, [*SMALL, "estimator={use='exact'}"])
