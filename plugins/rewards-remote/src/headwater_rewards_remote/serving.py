"""From a run file to a server: settings checked, address bound, weights loaded, served."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from headwater.composition import Named
from headwater.errors import InputError, did_you_mean
from headwater.http_address import token as check_token
from headwater.http_address import token_of
from headwater.rewards import compose_rewards, scorer
from headwater_rewards_remote.application import Limits, Service, application
from headwater_rewards_remote.judge import Judge

GRACE = 30
"""Seconds in which requests on their way are answered after a signal."""


@attrs.frozen(eq=False)
class Options:
    """How rewards are served."""

    host: str = "127.0.0.1"
    port: int = 8100
    device: str = ""
    token: str = attrs.field(default="", repr=False)
    most: int = 16
    """Images of one call of a reward."""
    eight_bit: bool = False
    limits: Limits = attrs.field(factory=Limits)


def chosen(file: Path, overrides: Sequence[str], keys: Sequence[str]) -> dict[str, Named]:
    """The rewards of a run file that are to be served; all of them where no key is given."""
    found = compose_rewards(file, overrides)
    unknown = [key for key in keys if key not in found]
    problems = [
        f"--only {key}: no reward of that key; there are {', '.join(found)}"
        f"{did_you_mean(key, found)}"
        for key in unknown
    ]
    picked = {key: named for key, named in found.items() if not keys or key in keys}
    problems += [
        f"[{named.key}]: it is served elsewhere already; leave it out with --only"
        for named in picked.values()
        if named.entry.name == "remote"
    ]
    if problems:
        raise InputError(str(file), problems)
    return picked


def read_token(variable: str, file: Path | None) -> str:
    """The token in an environment variable or a file; "" for none. InputError never shows it."""
    if variable and file:
        raise InputError("token", ["expected --token-env or --token-file, got both"])
    if file is None:
        found = token_of(variable)
    else:
        try:
            found = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InputError("token", [f"{file} cannot be read: {reason}"]) from None
        if not found:
            raise InputError("token", [f"{file} is empty; it should hold the token"])
    try:
        check_token(None, None, found)
    except ValueError as error:
        raise InputError("token", [str(error)]) from None
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than localhost counts as no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(options: Options) -> socket.socket:
    """A socket at the address, not listening yet. InputError for one that cannot be had."""
    host, port = options.host, options.port
    if not options.token and not is_loopback(host):
        raise InputError(
            "serve-reward",
            [
                f"--host {host}: other machines reach this address, so a token is needed; name it "
                f"by --token-env or --token-file, or stay on 127.0.0.1 and forward the port"
            ],
        )
    try:
        family, kind, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("serve-reward", [f"cannot listen on {host}:{port}: {reason}"]) from None
    return made


def serve(rewards: Mapping[str, Named], options: Options, say: Callable[[str], None]) -> int:
    """Load the rewards and answer until a signal comes.

    A second SIGINT, or `GRACE` seconds, end it without waiting for a reward at work.
    say: told the address once requests are taken. Returns: 130 after SIGINT, 0 after SIGTERM.
    """
    listening = bind(options)
    with listening:
        judges = load(rewards, options)
        service = Service(judges, options.limits, options.eight_bit)
        listening.listen(min(options.limits.requests, 1024))
        say(_announcement(rewards, listening))
        code = _until_signal(service, options, listening)
    if any(judge.lock.locked() for judge in judges.values()):
        # Python would wait for the thread, and the reward may never return.
        say("a reward was still at work and is cut off")
        sys.stdout.flush()
        os._exit(code)
    return code


def load(rewards: Mapping[str, Named], options: Options) -> dict[str, Judge]:
    """Load the weights of every reward."""
    from headwater.faults import blamed
    from headwater.protocols import LoadContext

    device = options.device or _default_device()
    judges = {}
    for key, named in rewards.items():
        score = scorer(named)
        if hasattr(named.plugin, "load"):
            with blamed(named, "load"):
                named.plugin.load(LoadContext(device))
        judges[key] = Judge(key, named, score, device, options.most)
    return judges


def _default_device() -> str:
    from accelerate import PartialState

    return str(PartialState().device)


def _announcement(rewards: Mapping[str, Named], listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    entries = (
        f"{key} ({n.entry.name}, {n.entry.distribution} {n.entry.version})"
        for key, n in rewards.items()
    )
    return f"serving {', '.join(entries)} on http://{where}"


def _until_signal(service: Service, options: Options, listening: socket.socket) -> int:
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(
            application(service, options.token),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=options.limits.requests,
            timeout_graceful_shutdown=GRACE,
        )
    )
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        received.append(number)
        server.should_exit = True

    # The server takes these signals over while it runs, and raises them again when it has ended.
    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 130 if signal.SIGINT in received else 0
