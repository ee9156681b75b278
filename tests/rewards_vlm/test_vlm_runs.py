"""Whole runs on the tiny backbone: a judge that lives, fails and dies; ImageReward in training."""

import json
import math
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from rewards_vlm import imagereward_cases

from headwater import checkpoints
from headwater.cli import main
from headwater.composition import compose
from headwater.errors import GuardError, InputError
from headwater.http_failures import UnavailableError, UnreachableError
from headwater.loop import train
from support.scripted_server import Answer, serving

EXAMPLES = Path(__file__).parents[2] / "plugins" / "rewards-vlm" / "examples"
SMALL = [
    "steps=4",
    "prompts.per_step=2",
    "prompts.group=3",
    "prompts.micro_batch=6",
    "rollout.steps=4",
    "rollout.guidance=1.0",
    "evaluation.count=2",
    "output.checkpoint_every=1",
    'output.trackers=["jsonl"]',
]
MARKS = (2, 3, 4.5)


def run_of(url, *sets, **reward):
    given = {"use": "unifiedreward", "server": url + "/v1", "model": "m", "retries": 0, **reward}
    pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
    return compose(EXAMPLES / "unifiedreward.toml", [*SMALL, *sets, f"reward.unified={{{pairs}}}"])


def mark(number):
    text = f"Final Score: {MARKS[number % 3]}"
    return Answer({"choices": [{"message": {"role": "assistant", "content": text}}]})


def steps_of(folder):
    """Rows of the metrics that are optimizer steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "grad_norm" in row]


@pytest.mark.parametrize("name", ["unifiedreward.toml", "imagereward.toml"])
def test_every_example_passes_the_check(name):
    done = CliRunner().invoke(main, ["check", str(EXAMPLES / name)])
    assert done.exit_code == 0, done.output


def test_a_run_is_trained_by_the_marks_of_a_judge(tmp_path):
    with serving(lambda number, _: mark(number)) as server:
        train(run_of(server.url), tmp_path / "out")
        asked = len(server.requests)
    rows = steps_of(tmp_path / "out")
    assert len(rows) == 4
    assert all(2 <= row["reward/unified"] <= 4.5 and row["grad_norm"] > 0 for row in rows)
    assert asked == 4 * 6 + 2 * (2)  # training samples, and two evaluations of two prompts


@pytest.mark.parametrize(("gone", "error"), [(False, UnavailableError), (True, UnreachableError)])
def test_a_server_that_dies_ends_the_run_and_its_checkpoint_is_whole(tmp_path, gone, error):
    """Six marks a step and two before: it fails in the third step, or is no more there."""
    alive = 2 + 2 * 6 + 3

    def respond(number, _):
        if number == alive and gone:
            server.http.socket.close()  # no new connection is taken
        return mark(number) if number < alive else Answer(b"", 500)

    with serving(respond) as server:
        run = run_of(server.url, retries=2 if gone else 0, concurrency=1)
        with pytest.raises(error) as caught:
            train(run, tmp_path / "out")
    assert any("step 3 of 4" in note for note in caught.value.__notes__)
    saved = checkpoints.newest(tmp_path / "out")
    assert saved.name == "step-000002" and checkpoints.damage(saved) == ""
    assert len(steps_of(tmp_path / "out")) == 2

    with serving(lambda number, _: mark(number), server.http.server_port):
        train(run, tmp_path / "out", resume=True)
    assert [row["step"] for row in steps_of(tmp_path / "out")] == [1, 2, 3, 4]


def test_at_the_command_line_it_is_one_paragraph_and_exit_code_1(tmp_path):
    sets = [flag for item in SMALL for flag in ("--set", item)]
    sets += ["--set", "reward.unified.server=http://127.0.0.1:9/v1"]
    sets += ["--set", "reward.unified.on_failure=fail", "--set", "reward.unified.retries=0"]
    arguments = ["run", str(EXAMPLES / "unifiedreward.toml"), "--out", str(tmp_path / "out"), *sets]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "http://127.0.0.1:9/v1/chat/completions: no connection" in done.output
    assert "Traceback" not in done.output


def test_a_failed_mark_drops_its_group_and_is_no_zero(tmp_path):
    """Sample 7 of 24 has no mark: one of eight groups is dropped, and the run goes on."""

    def respond(number, _):
        return Answer(b"", 503) if number == 2 + 6 else mark(number)

    with serving(respond) as server:
        run = run_of(server.url, on_failure="nan", concurrency=1)
        with pytest.warns(UserWarning, match="UnavailableError, now NaN"):
            train(run, tmp_path / "out")
    rows = steps_of(tmp_path / "out")
    assert [row["samples_dropped"] for row in rows] == [0, 3, 0, 0]
    assert [row["reward/unified/failed_images"] for row in rows] == [0, 1, 0, 0]
    assert rows[1]["grad_norm"] > 0
    for row in rows:
        assert row["reward/unified"] is None or not row["reward/unified"] < 2


def test_a_nan_stops_the_run_where_the_guard_says_so(tmp_path):
    def respond(number, _):
        return Answer({"choices": []}) if number == 2 + 6 else mark(number)

    with serving(respond) as server:
        run = run_of(server.url, "guard.nonfinite_reward=fail", on_failure="nan")
        with (
            pytest.warns(UserWarning, match="expected one choice"),
            pytest.raises(GuardError, match="reward 'unified' is nan"),
        ):
            train(run, tmp_path / "out")
    assert checkpoints.damage(checkpoints.newest(tmp_path / "out")) == ""


def test_geneval_needs_prompts_with_its_metadata(tmp_path):
    sets = ["reward={geneval={use='geneval',server='http://127.0.0.1:9'}}"]
    with pytest.raises(InputError, match=r"2200 of 2200 prompts have no metadata of GenEval"):
        compose(EXAMPLES / "unifiedreward.toml", [*SMALL, *sets])
    metadata = {"tag": "single_object", "include": [{"class": "circle", "count": 1}]}
    lines = [{"prompt": "a red circle on a white background", "metadata": metadata}] * 2
    listed = tmp_path / "list.jsonl"
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets += [f"prompts.file={listed}", f"evaluation.prompts={listed}"]
    with serving(lambda number, _: Answer({"correct": number % 2 == 0})) as server:
        sets[0] = f"reward={{geneval={{use='geneval',server='{server.url}'}}}}"
        train(compose(EXAMPLES / "unifiedreward.toml", [*SMALL, *sets]), tmp_path / "out")
    assert len(steps_of(tmp_path / "out")) == 4


def test_wrong_settings_are_told_before_anything_loads(tmp_path):
    sets = {
        "reward.unified.server=ftp://x": "expected an address",
        "reward.unified.template=none.txt": "template: none.txt cannot be read",
        "reward.unified.token_variable=NO_SUCH_TOKEN": "NO_SUCH_TOKEN is not set",
        "reward.unified.on_failure=zero": "expected one of 'fail', 'nan'",
        "reward.unified.concurrency=0": "expected a number from 1",
        "reward.unified.extra={messages=[]}": "'messages' is set by its own key",
    }
    for override, said in sets.items():
        with pytest.raises(InputError, match=said):
            compose(EXAMPLES / "unifiedreward.toml", [*SMALL, override])
    with pytest.raises(InputError, match=r"hpsv3.*instruction: no file"):
        compose(
            EXAMPLES / "imagereward.toml",
            ["reward={hpsv3={use='hpsv3',instruction='none.txt'}}"],
        )


def test_imagereward_trains_through_its_gradient_and_judges_held_out(tmp_path):
    model, vocabulary = imagereward_cases.write(tmp_path / "weights")
    sizes = ", ".join(f"{k} = {v}" for k, v in attrs.asdict(imagereward_cases.SIZES).items())
    given = (
        f"use='imagereward', model='{model}', vocabulary='{vocabulary}', architecture={{{sizes}}}"
    )
    small = [item for item in SMALL if "group" not in item and "micro" not in item]
    run = compose(
        EXAMPLES / "imagereward.toml",
        [
            *small,
            "steps=2",
            f"reward.imagereward={{{given}}}",
            f"evaluation.reward.held={{{given}, rounding='pillow'}}",
        ],
    )
    summary = train(run, tmp_path / "out")
    rows = steps_of(tmp_path / "out")
    assert all(row["grad_norm"] > 0 and math.isfinite(row["reward/imagereward"]) for row in rows)
    assert math.isfinite(summary.held_out["held"]["after"]["mean"])
