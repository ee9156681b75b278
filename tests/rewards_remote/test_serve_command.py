"""`headwater serve-reward`: what it refuses before any weight loads, and how it ends."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner
from served import TOML, ask, body, serving

from headwater.cli import main

PLAIN = '[reward.detector]\nuse = "tiny-detector"\n'


def refused(tmp_path, *options, toml=PLAIN):
    """Exit code and words of a server that does not start."""
    file = tmp_path / "served.toml"
    file.write_text(toml)
    done = CliRunner().invoke(main, ["serve-reward", str(file), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gpu-box"])
def test_an_address_that_others_reach_needs_a_token(tmp_path, host):
    code, said = refused(tmp_path, "--host", host)
    assert code == 2
    assert f"--host {host}: other machines reach this address, so a token is needed" in said


def test_a_port_in_use_is_said(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused(tmp_path, "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said


def test_tokens_that_cannot_be_read(tmp_path):
    empty, odd = tmp_path / "empty", tmp_path / "odd"
    empty.write_text("\n")
    odd.write_text("two\nlines")
    cases = {
        ("--token-env", "NO_SUCH_VARIABLE"): "NO_SUCH_VARIABLE is not set",
        ("--token-file", str(empty)): "is empty",
        ("--token-file", str(tmp_path / "none")): "cannot be read: No such file",
        ("--token-file", str(odd)): "expected a token of printable ASCII; it is not shown here",
        ("--token-file", str(odd), "--token-env", "A"): "got both",
    }
    for options, said in cases.items():
        code, found = refused(tmp_path, *options)
        assert code == 2
        assert said in found
        assert "lines" not in found


def test_run_files_that_hold_nothing_to_serve(tmp_path):
    loop = '[reward.far]\nuse = "remote"\nurl = "http://127.0.0.1:1"\nreward = "a"\n'
    code, said = refused(tmp_path, toml=loop)
    assert code == 2
    assert "[reward.far]: it is served elsewhere already" in said
    code, said = refused(tmp_path, "--only", "detektor")
    assert code == 2
    assert (
        "--only detektor: no reward of that key; there are detector; did you mean 'detector'?"
        in said
    )
    code, said = refused(tmp_path, toml="[reward]\n")
    assert code == 2
    assert "expected at least one table [reward.KEY]" in said


def test_help_imports_no_torch():
    code = (
        "import sys; sys.argv = ['headwater', 'serve-reward', '--help']\n"
        "from headwater.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)],
)
def test_a_signal_ends_it_after_the_requests_on_their_way(tmp_path, number, code):
    toml = TOML.replace("pause = 0.2", "pause = 1.0")
    with serving(tmp_path, toml=toml) as found:
        answers = []
        payload = body("sizes")
        asker = threading.Thread(target=lambda: answers.append(ask(found.url + "/score", payload)))
        asker.start()
        time.sleep(0.5)
        assert found.stop(number)[0] == code
        asker.join()
        assert answers[0][0] == 200


def test_a_second_signal_ends_it_at_once(tmp_path):
    """The reward sleeps for longer than the test waits."""
    with serving(tmp_path, toml=TOML.replace("pause = 0.2", "pause = 60")) as found:
        host, port = found.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        sent = json.dumps(body("sizes"))
        connection.request("POST", "/score", sent, {"Content-Type": "application/json"})
        time.sleep(0.5)
        found.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        code, said = found.stop(signal.SIGINT, wait=10)
    assert code == 130
    assert "still at work" in said
