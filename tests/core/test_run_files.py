"""Wrong run files: one clear paragraph with every problem, and nothing written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomli
from click.testing import CliRunner

from headwater.cli import main
from headwater.composition import compose, resolved
from headwater.errors import InputError


def problems(path, *overrides):
    with pytest.raises(InputError) as caught:
        compose(path, overrides)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def test_every_problem_of_a_file_is_reported_at_once(run_file):
    path = run_file(
        {"lr = 0.01": 'learning_rate = 0.01\nschedule = "cosin"', "per_step = 4": "per_step = 1.5"},
        extra="[engine]\nmode = 3\n",
    )
    found = problems(path)
    assert "[optimizer] learning_rate: unknown key" in "\n".join(found)
    assert any(
        "schedule" in p and "did you mean 'cosine'" in p and "got 'cosin'" in p for p in found
    )
    assert "[prompts] per_step: expected a whole number, got 1.5" in found
    assert any(p.startswith("[engine] mode: expected one of 'stream'") for p in found)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("optimizer.lr", "-1", "expected a number above 0, got -1"),
        ("optimizer.lr", "true", "expected a number, got True"),
        ("optimizer.ema", "1.5", "expected a number from 0 to below 1, got 1.5"),
        ("steps", "0", "expected a number from 1 to 10000000, got 0"),
        ("steps", "2.5", "expected a whole number, got 2.5"),
        ("seed", '"7"', "expected a whole number, got '7'"),
        ("rollout.store", '"float16"', "expected one of 'float32', 'bfloat16', got 'float16'"),
        ("rollout.guidance", "4.0", "takes no guidance"),
        ("guard.max_skips", "0", "expected a number of at least 1"),
        ("estimator.draws", "3", "does not divide [prompts] per_step = 4; valid: 1, 2, 4"),
        ("evaluation.count", "50", "expected at most the 5 prompts of its list, got 50"),
        ("evaluation.keep_best", '"speed"', "expected one of brightness, count, got 'speed'"),
        ("evaluation.reward.count.weight", "2.0", "weight: unknown key"),
        ("algorithm.updates", "2", "takes only updates = 1, got 2"),
        ("backbone.rank", "4", "[backbone] rank: unknown key"),
        ("output.trackers", '["csv"]', "no observer named 'csv'"),
        ("estimator.use", '"toy-bpt"', "did you mean 'toy-bptt'"),
        ("prompts.file", '"prompt.txt"', "no such prompt list"),
        ("dynamics", "3", "[dynamics]: expected a table, got 3"),
        ("rewards", "3", "rewards: unknown key; did you mean 'reward'?"),
    ],
)
def test_one_wrong_value_is_named_with_what_was_expected(run_file, key, value, expected):
    found = problems(run_file(), f"{key}={value}")
    assert len(found) == 1, found
    assert expected in found[0]


def test_an_override_without_a_value_is_refused(run_file):
    assert "expected KEY=VALUE" in problems(run_file(), "steps")[0]


def test_a_missing_table_is_named(tmp_path, run_file):
    path = run_file()
    path.write_text(path.read_text().replace('[estimator]\nuse = "toy-bptt"\n', ""))
    assert problems(path) == ['[estimator]: missing; expected a table with use = "NAME"']


def test_an_empty_prompt_list_is_refused(tmp_path, run_file):
    path = run_file()
    (tmp_path / "prompts.txt").write_text("\n \n")
    assert "holds no prompt" in problems(path)[0]


def test_a_broken_jsonl_prompt_names_its_line(tmp_path, run_file):
    path = run_file({"prompts.txt": "prompts.jsonl"})
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    assert "line 2: expected an object with a text 'prompt'" in problems(path)[0]


def test_jsonl_prompts_keep_their_negative_and_metadata(tmp_path, run_file):
    path = run_file({"prompts.txt": "prompts.jsonl"})
    record = {"prompt": "a", "negative_prompt": "b", "metadata": {"tag": 1}}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(record))
    (prompt,) = compose(path).prompts
    assert (prompt.text, prompt.negative, prompt.metadata) == ("a", "b", {"tag": 1})


def test_text_that_is_not_toml_says_where(tmp_path):
    (tmp_path / "run.toml").write_text("steps = = 3")
    assert "not valid TOML" in problems(tmp_path / "run.toml")[0]


def test_a_missing_file_suggests_a_near_one(run_file):
    path = run_file()
    assert problems(path.with_name("ruin.toml")) == ["no such file; did you mean 'run.toml'?"]


def test_a_reward_without_gradient_is_refused_for_an_endpoint_algorithm(run_file):
    found = problems(run_file({"toy-brightness": "toy-count"}))
    assert "reward 'toy-count' is not differentiable" in found[0]
    assert "[evaluation.reward.KEY]" in found[0]


def test_the_resolved_file_gives_the_same_run_back(tmp_path, run_file):
    import tomli_w

    run = compose(run_file())
    table = resolved(run)
    again = tmp_path / "elsewhere" / "run.toml"
    again.parent.mkdir()
    again.write_text(tomli_w.dumps(table))
    assert resolved(compose(again)) == table
    assert table["optimizer"]["ema"] == 0.995


def test_the_command_ends_with_code_2_and_without_a_traceback(run_file, tmp_path):
    path = run_file({"lr = 0.01": "lr = -1.0"})
    result = CliRunner().invoke(main, ["run", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {path}: 1 problem")
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_a_run_is_never_written_to(run_file, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.toml").write_text("precious")
    result = CliRunner().invoke(main, ["run", str(run_file()), "--out", str(out)])
    assert result.exit_code == 2
    assert "already holds a run; nothing was written" in result.output
    assert (out / "run.toml").read_text() == "precious"
    assert [p.name for p in out.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("command", ["", "run", "check", "plan", "plugins", "show", "sample"])
def test_help_imports_no_torch(command):
    code = (
        "import sys\nfrom headwater.cli import main\n"
        f"main({[command, '--help'] if command else ['--help']!r}, standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_no_torch():
    code = "import sys, headwater; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ROOT = Path(__file__).parents[2]
SHIPPED = sorted(p for p in ROOT.glob("*/*/examples/*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_every_shipped_run_file_is_valid(path):
    assert tomli.loads(path.read_text())
    assert compose(path).file.steps >= 1
