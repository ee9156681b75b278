"""What a run shows: through a real pseudo-terminal, through a pipe, and its numbers."""

import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from headwater.progress import Display, duration
from headwater.testing.runs import write_run_file

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def command(path, out):
    code = "from headwater.cli import main; main()"
    return [sys.executable, "-c", code, "run", str(path), "--out", str(out)]


def environment():
    path = os.pathsep.join(p for p in sys.path if p)
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TERM": "xterm"}


def through_a_terminal(arguments, columns):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        arguments, stdin=slave, stdout=slave, stderr=slave, env=environment()
    )
    os.close(slave)
    out = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side has closed
            break
        if not piece:
            break
        out += piece
    os.close(master)
    assert process.wait(60) == 0, out.decode()
    return out.decode()


@pytest.fixture
def run_file(tmp_path, headwater_toys):
    tables = {"steps": 6, "evaluation": {"every": 3, "count": 3}}
    return write_run_file(tmp_path / "file", tables)


def test_through_a_pipe_it_is_plain_text_with_a_line_an_evaluation(run_file, tmp_path):
    result = subprocess.run(
        command(run_file, tmp_path / "run"), env=environment(), capture_output=True, timeout=120
    )
    text = (result.stdout + result.stderr).decode()
    assert result.returncode == 0, text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    number = r"-?\d+\.\d{4} ± (\d+\.\d{4}|nan)"
    assert re.fullmatch(rf"step 0/6  brightness {number}  \d+ s", lines[0])
    for step, line in zip((3, 6), lines[1:], strict=True):
        change = number.replace("-?", "[+-]")
        assert re.fullmatch(rf"step {step}/6  brightness {number} \({change}\)  \d+ s", line)


def test_on_a_terminal_of_80_columns_nothing_wraps_and_the_numbers_move(run_file, tmp_path):
    text = through_a_terminal(command(run_file, tmp_path / "r"), 80)
    plain = CONTROL.sub("", text)
    drawn = [line for line in re.split(r"[\r\n]+", plain) if "left" in line]
    assert drawn
    assert all(len(line) <= 80 for line in drawn)
    last = drawn[-1]
    assert re.search(r"6/6 reward -?\d+\.\d{3} ± \d+\.\d{3}  grad \S+  left 0:00", last)


def display(width=80, terminal=True):
    out = io.StringIO()
    shown = Display(Console(file=out, width=width, force_terminal=terminal))
    shown.rewards, shown.steps, shown.every = ("a",), 100, 10
    shown.task = shown.bar.add_task("", total=100)
    return shown, out


def step_of(seconds, reward=0.0):
    return {"seconds": seconds, "reward/a": reward, "grad_norm": 1.0}


def test_one_slow_step_and_an_evaluation_do_not_move_the_time_left():
    shown, _ = display()
    for step in range(1, 20):
        shown.after_step(step, step_of(500.0 if step == 7 else 2.0), "")
    assert shown.left(19) == 81 * 2.0
    shown.after_evaluation(20, {"evaluation/seconds": 30.0})
    assert shown.left(19) == 81 * 2.0 + 9 * 30.0  # after steps 20, 30, ..., 100


def test_the_reward_is_the_mean_of_recent_steps_and_its_error():
    shown, _ = display()
    for step, reward in enumerate((1.0, 2.0, 3.0, 4.0), 1):
        shown.after_step(step, step_of(1.0, reward), "")
    error = math.sqrt(5 / 3) / 2  # variance 5/3 of four values
    assert f"reward 2.500 ± {error:.3f}" in shown.bar.tasks[0].description


def test_a_reward_that_is_no_number_is_shown_as_such():
    shown, _ = display()
    for step, reward in enumerate((1.0, math.nan), 1):
        shown.after_step(step, step_of(1.0, reward), "")
    assert "reward nan  grad" in shown.bar.tasks[0].description


def test_many_rewards_break_between_rewards_on_a_terminal_and_not_in_a_file():
    metrics = {}
    for key in ("preference", "aesthetic", "detector"):
        metrics |= {f"evaluation/{key}": 0.5, f"evaluation/{key}_se": 0.1}
        metrics |= {f"change/{key}": 0.25, f"change/{key}_se": 0.0625}
    shown, out = display()
    shown.after_evaluation(50, metrics)
    lines = out.getvalue().splitlines()
    assert len(lines) > 1 and all(len(line) <= 80 for line in lines)
    assert sum("(+0.2500 ± 0.0625)" in line for line in lines) >= 2
    shown, out = display(terminal=False)
    shown.after_evaluation(50, metrics)
    assert len(out.getvalue().splitlines()) == 1


def test_a_skipped_update_says_why_whatever_is_in_the_text():
    shown, out = display(terminal=False)
    shown.after_step(3, step_of(1.0), "the gradient is [nan]")
    assert out.getvalue() == "step 3: update skipped, the gradient is [nan]\n"


def test_durations():
    assert [duration(s) for s in (0.4, 59.6, 3723, math.nan)] == ["0:00", "1:00", "1:02:03", "-"]
