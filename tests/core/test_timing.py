"""`plan --time` against plugins that sleep a known time: sleep takes as long under any load."""

import json
import math

import pytest
from click.testing import CliRunner

from headwater.cli import main

FORWARD, SCORE, BACK = 0.02, 0.03, 0.04
"""Seconds of a velocity, of a score and of a score's way back."""
SLOWER = 0.25
"""What waking up, and the toy's own arithmetic on a busy machine, may add; nothing can take less."""

EVERY = "every = 2\nprompts"

SOURCE = f"""
    import time
    from typing import ClassVar
    import attrs, torch
    from headwater import hookimpl
    from headwater.testing.plugins import ToyBackbone, Brightness

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep({SCORE})
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep({BACK})
            return gradient

    @attrs.define(eq=False)
    class Sleeper(ToyBackbone):
        def velocity(self, x, sigma, conditioning):
            time.sleep({FORWARD})
            return super().velocity(x, sigma, conditioning)

    @attrs.frozen(eq=False)
    class SlowBrightness(Brightness):
        @hookimpl
        def score(self, images):
            return Slow.apply(images.flatten(1).mean(dim=1))

    @attrs.define(eq=False)
    class Unloadable(ToyBackbone):
        def load(self, context):
            raise OSError("no weights in this place")
"""


@pytest.fixture
def sleepers(package, run_file):
    """run_file, with a backbone and a reward that sleep."""
    entries = {
        "backbone sleeper": "Sleeper",
        "backbone unloadable": "Unloadable",
        "reward slow": "SlowBrightness",
    }
    package("sleepers", entries, SOURCE)

    def write(replaced=None, extra="", name="run.toml"):
        named = {'use = "toy"\n': 'use = "sleeper"\n', 'use = "toy-brightness"': 'use = "slow"'}
        return run_file({**named, **(replaced or {})}, extra, name)

    return write


def invoked(*args):
    return CliRunner().invoke(main, ["plan", *map(str, args)])


def seconds_of(*args):
    result = invoked("--time", "--json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["seconds"]


def assert_slept(found, seconds):
    assert seconds <= found <= (1 + SLOWER) * seconds


def test_the_estimate_is_that_of_the_sleep_for_an_endpoint_gradient(sleepers):
    """4 steps, each two micro-batches of 5 velocities, 5 more with gradient, a score each; three
    evaluations of 4 prompts in batches of two."""
    sets = {"micro_batch = 4": "micro_batch = 2", EVERY: "every = 2\ncount = 4\nprompts"}
    found = seconds_of(sleepers(sets))
    assert_slept(found["rollout"], 4 * 2 * 5 * FORWARD)
    assert_slept(found["engine"], 4 * 2 * 5 * FORWARD)
    assert_slept(found["rewards"], 4 * 2 * (SCORE + BACK))
    assert_slept(found["evaluation"], 3 * 2 * (5 * FORWARD + SCORE))
    parts = ("loading", "rollout", "rewards", "engine", "optimizer", "evaluation")
    assert found["total"] == pytest.approx(sum(found[part] for part in parts))
    assert found["measured"]["steps"] == 2


def test_a_rollout_of_several_updates_is_measured_whole(sleepers):
    """7 steps of a per-step algorithm with 2 updates x 2 epochs: two rollouts of 8 samples, one
    micro-batch of 4 a step; 4 trained steps a step."""
    text = """
    [dynamics]
    use = "toy-noise"
    """
    sets = {
        'use = "toy-direct"': 'use = "toy-policy"\nupdates = 2\nepochs = 2',
        'use = "toy-bptt"': 'use = "toy-each"',
        "steps = 4\n": "steps = 7\n",
        EVERY: "every = 100\ncount = 4\nprompts",
    }
    found = seconds_of(sleepers(sets, text.replace("    ", "")))
    assert found["measured"]["steps"] == 4
    assert_slept(found["rollout"], 2 * 2 * 5 * FORWARD)
    assert_slept(found["rewards"], 2 * 2 * SCORE)
    assert_slept(found["engine"], 7 * 4 * FORWARD)


def test_a_run_shorter_than_what_is_measured_is_estimated_for_its_own_length(sleepers):
    found = seconds_of(sleepers({"steps = 4\n": "steps = 1\n"}))
    assert_slept(found["rollout"], 5 * FORWARD)


def test_steps_with_more_work_than_those_measured_count_by_their_work(sleepers, package):
    """An estimator that trains one step of the rollout in the first four optimizer steps, then 5."""
    source = """
    import attrs, torch
    from headwater.testing.objectives import EveryStep, _alone
    from headwater import hookimpl

    @attrs.define(eq=False)
    class Growing(EveryStep):
        exact = False

        @hookimpl
        def build_surrogate(self, rollout):
            late = rollout.batch.policy_version >= 4
            return _alone(rollout, range(0 if late else rollout.steps - 1, rollout.steps), 0.0)
    """
    package("growing", {"estimator growing": "Growing"}, source)
    sets = {'use = "toy-bptt"': 'use = "growing"', "steps = 4\n": "steps = 8\n"}
    found = seconds_of(sleepers(sets))
    assert_slept(found["engine"], (4 * 1 + 4 * 5) * FORWARD)


def test_nothing_is_written_and_nothing_is_timed_unless_asked(sleepers, tmp_path, monkeypatch):
    path = sleepers()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = invoked(path, "--json")
    assert json.loads(result.stdout)["seconds"] is None
    seconds_of(path)
    fresh = {p for p in set(tmp_path.rglob("*")) - set(before) if "__pycache__" not in str(p)}
    assert not fresh


def test_several_runs_stand_side_by_side_with_their_seconds(sleepers):
    short, long = sleepers(), sleepers({"steps = 4\n": "steps = 400\n"}, name="long.toml")
    result = invoked("--time", short, long)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if "rollout, estimated" in line]
    quick, slow = (part.strip() for part in line.strip("│ ").split("│")[1:])
    assert_slept(float(quick.removesuffix(" s")), 4 * 5 * FORWARD)
    assert slow.endswith(" s")
    assert_slept(float(slow.removesuffix(" s")), 400 * 5 * FORWARD)


def test_a_single_run_prints_each_part(sleepers):
    result = invoked("--time", sleepers())
    told = result.stdout[result.stdout.index("estimated time on cpu, from 2 optimizer steps") :]
    for part in ("loading", "rollout", "rewards", "engine", "optimizer", "evaluation", "total"):
        (line,) = [line for line in told.splitlines() if line.startswith(f"  {part} ")]
        value, unit = line.split()[-2:]
        assert math.isfinite(float(value)) and unit == "s"


def test_an_error_while_loading_is_one_paragraph_that_names_the_file(sleepers):
    path = sleepers({'use = "toy"\n': 'use = "unloadable"\n'})
    result = invoked("--time", path)
    assert result.exit_code == 1
    told = result.stderr[result.stderr.index("Error: ") :]
    assert "no weights in this place" in told
    assert "sleepers 1.0" in told and f"while timing {path}" in told
    assert "Traceback" not in told and "\n\n" not in told.strip()
