"""Every sort of broken package: named with its table, told in one paragraph, and no one else's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from headwater.cli import main
from support.broken import METADATA, OTHERS, PLAIN, ROWS, Row

REPLACED = {
    "estimator": {'"toy-bptt"': '"{}"'},
    "reward": {'"toy-brightness"': '"{}"'},
    "backbone": {'use = "toy"': 'use = "{}"'},
    "algorithm": {'"toy-direct"': '"{}"'},
    "dynamics": {
        "[algorithm]": '[dynamics]\nuse = "{}"\n[algorithm]',
        '"toy-direct"': '"toy-policy"',
        '"toy-bptt"': '"toy-each"',
        "per_step = 4": "per_step = 2\ngroup = 2",
    },
    "observer": {"[output]": '[output]\ntrackers = ["jsonl", "{}"]'},
}
CODES = {"harmless": 0, "found": 2, "load": 1, "run": 1, "guard": 3}
SETS = ["--set", "steps=2"]


def distribution_of(row):
    return f"broken-{row.name}"


def module_of(row):
    return distribution_of(row).replace("-", "_")


def install(package, row):
    package(distribution_of(row), {f"{row.kind} {row.name}": "Mine"}, row.source, "2.3")


def invoke(*arguments):
    """Exit code and everything that is shown, which is no traceback."""
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    escaped = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not escaped, f"a traceback is shown: {done.exception!r}\n{done.output}"
    return done.exit_code, done.output


@pytest.fixture
def naming(run_file):
    """The run file with a plugin of the row's kind replaced."""

    def written(row):
        replaced = REPLACED[row.kind].items()
        path = run_file({old: new.format(row.name) for old, new in replaced})
        if row.kind != "observer":
            path.write_text(path.read_text().replace("[output]", '[output]\ntrackers = ["jsonl"]'))
        return path

    return written


def numbers_of(out):
    """All rewards before and after a run."""
    summary = json.loads((out / "summary.json").read_text())
    return summary["reward"], summary["held_out"]


PLAIN_NUMBERS = {}


@pytest.fixture
def without_fault(package, naming, tmp_path):
    """The numbers of a run with the same plugin, whose import does nothing else."""

    def numbers(kind):
        if kind not in PLAIN_NUMBERS:
            row = Row(f"plain-{kind}", kind, "harmless", PLAIN[kind], "")
            install(package, row)
            assert invoke("run", naming(row), "--out", tmp_path / "plain", *SETS)[0] == 0
            PLAIN_NUMBERS[kind] = numbers_of(tmp_path / "plain")
        return PLAIN_NUMBERS[kind]

    return numbers


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Where a run that broke something would leave it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.name}")
def test_a_broken_package_that_is_named(package, naming, tmp_path, here, without_fault, row):
    install(package, row)
    path, out = naming(row), tmp_path / "out"
    code, shown = invoke("run", path, "--out", out, *SETS)
    told = " ".join(shown.split())
    assert row.cause in told
    assert code == CODES[row.shows]
    assert Path.cwd() == here
    assert not list(here.iterdir())
    if row.shows == "harmless":
        assert numbers_of(out) == without_fault(row.kind)
        return
    assert not list(out.glob("checkpoints/*"))
    if row.shows == "guard":
        return  # a number is not finite: whose fault that is, cannot be told
    where = "reward.brightness" if row.kind == "reward" else row.kind
    assert f"[{where}" in told
    assert f"{distribution_of(row)} 2.3" in told
    assert f"({module_of(row)}:Mine)" in told
    assert len(shown) < 1500
    assert out.exists() == (row.shows == "run")


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.shows == "found" and row.kind == "estimator"][::4],
    ids=lambda row: row.name,
)
def test_check_and_plan_find_what_run_finds(package, naming, here, row):
    install(package, row)
    path = naming(row)
    for command in ("check", "plan", "cite"):
        code, shown = invoke(command, path)
        assert code == 2, command
        assert row.cause in " ".join(shown.split())
    assert not list(here.iterdir())


@pytest.fixture
def all_of_them(package, tmp_path):
    """Every row installed, and packages whose metadata, commands and prompts are broken."""
    for row in ROWS:
        install(package, row)
    site = tmp_path / "site"
    for name, files in METADATA.items():
        folder = site / f"{name}-2.3.dist-info"
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
    for name, (points, source) in OTHERS.items():
        package(name, points, source, "2.3")
    return site


def test_all_of_them_together_disturb_nobody(all_of_them, run_file, tmp_path, here):
    path, out = run_file(), tmp_path / "out"
    assert invoke("check", path)[0] == 0
    assert invoke("--help")[0] == 0
    code, shown = invoke("plugins")
    assert code == 0
    for row in ROWS:
        assert f"{distribution_of(row)} 2.3" in shown
    for name in ("no-version", "no-name", *OTHERS):
        assert name in shown.replace("_", "-")
    assert shown.count("BROKEN: its metadata is none") == 3
    code, shown = invoke("run", path, "--out", out, *SETS)
    assert code == 0
    assert "broken" not in shown
    assert (out / "summary.json").exists()
    assert not list(here.iterdir())
    assert not list(all_of_them.glob("*.imported")), "nobody named it"


def test_what_can_be_told_without_a_run_is_a_row_of_the_check(all_of_them):
    code, shown = invoke("plugins", "--check", "--json")
    assert code == 1
    faults = {
        row["name"]: row["fault"]
        for row in json.JSONDecoder().raw_decode(shown[shown.index("[\n {") :])[0]
    }
    for row in ROWS:
        if row.shows == "harmless":
            assert not faults[row.name]
    for row in ROWS[: [row.name for row in ROWS].index("constructor-raises")]:
        assert faults[row.name], row.name
        if "does not fit" not in row.cause:
            assert row.cause in faults[row.name]
    assert "it needs headwater>=9" in faults["newer"]
    assert "it is no click command" in faults["no-command"]
    assert "No module named 'nowhere'" in faults["lists-raise"]
    assert "headwater itself has a command of that name" in faults["run"]


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        ("newer", "newer 2.3 (newer:Mine): it needs headwater>=9, installed is 0."),
        ("twice", 'is offered by twice-a 2.3 and twice-b 2.3. Choose one: use = "twice-a:twice"'),
        ("no-name", "no_name 2.3 (nowhere:Mine): ModuleNotFoundError: No module named 'nowhere'"),
        ("no-version", "no-version 2.3 (nowhere:Mine): ModuleNotFoundError"),
        ("no-metadata", "no_metadata 2.3 (nowhere:Mine): ModuleNotFoundError"),
        ("no-target", "odd_points 2.3 (): ValueError: Empty module name"),
        ("a a", "odd_points 2.3 (b c): ModuleNotFoundError: No module named 'b c'"),
        ("malformed", "What malformed 2.3 offers cannot be read: its metadata is none: line 2"),
        ("binary", "What binary 2.3 offers cannot be read: its metadata is none: 'utf-8' codec"),
        ("utf16", "What utf16 2.3 offers cannot be read: its metadata is none: 'utf-8' codec"),
    ],
)
def test_metadata_that_is_broken(all_of_them, run_file, here, use, cause):
    code, shown = invoke("run", run_file({'"toy-bptt"': f'"{use}"'}))
    assert code == 2
    told = " ".join(shown.split())
    assert cause in told
    assert "[estimator] use" in told
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("no-command", "no-command 2.3 (no_command:Mine) cannot be loaded: it is no click command"),
        ("command-raises", "(command_raises:Mine) cannot be loaded: ZeroDivisionError"),
        ("command-exits", "(command_exits:Mine) cannot be loaded: SystemExit"),
        ("claimed", "the command 'claimed' is offered by claims-a 2.3 and claims-b 2.3"),
    ],
)
def test_a_broken_command(all_of_them, name, cause):
    code, shown = invoke(name, "--help")
    assert code == 2
    assert cause in " ".join(shown.split())
    assert invoke("run", "--help")[1].startswith("Usage: main run")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("lists-raise", "lists-raise 2.3 (lists_raise:Mine) cannot be read: ModuleNotFoundError"),
        ("lists-none", "lists-none 2.3 (lists_none:Mine) cannot be read: TypeError"),
    ],
)
def test_broken_prompt_lists(all_of_them, run_file, here, name, cause):
    code, shown = invoke("run", run_file({'"prompts.txt"': f'"{name}:train"'}))
    assert code == 2
    told = " ".join(shown.split())
    assert cause in told
    assert "[prompts] file" in told
    assert not list(here.iterdir())


def started(site, *arguments, **variables):
    """The command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(site), **variables}
    environment.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)  # an earlier test's command set it
    command = [sys.executable, "-m", "headwater", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def test_a_process_ends_as_the_library_does(all_of_them, run_file, tmp_path):
    """torch reads every package's entry points when it loads, and would fail at some of these."""
    healthy = started(all_of_them, "check", run_file())
    path = run_file({'"toy-bptt"': '"exit"'}, name="exit.toml")
    exits = started(all_of_them, "run", path, "--out", tmp_path / "out", HEADWATER_TRACEBACK="1")
    out, err = healthy.communicate()
    assert healthy.returncode == 0
    assert out.endswith(": ok (toy-bptt, toy-direct, toy, brightness)\n")
    assert "offers cannot be read" in err
    assert "torch looks for no further device backends" in err
    assert "Traceback" not in err
    out, err = exits.communicate()
    assert (exits.returncode, out) == (2, "")
    assert err.index("Traceback") < err.index("SystemExit: 0") < err.index("Error: ")
    assert "broken-exit 2.3 (broken_exit:Mine): SystemExit: 0" in err
    assert not (tmp_path / "out").exists()


def test_an_interrupt_from_the_keyboard_is_nobodys_fault(package, run_file, tmp_path):
    source = "import pathlib, time\npathlib.Path(__file__ + 'x').touch()\ntime.sleep(60)"
    package("slow", {"estimator slow": "Mine"}, source)
    process = started(tmp_path / "site", "check", run_file({'"toy-bptt"': '"slow"'}))
    until = time.monotonic() + 60
    while not (tmp_path / "site" / "slow.pyx").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "interrupted\n")
