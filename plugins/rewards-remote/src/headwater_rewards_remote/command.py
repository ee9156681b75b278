"""`headwater serve-reward`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

MIB = 2**20


@click.command("serve-reward")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--only", multiple=True, metavar="KEY", help="Serve this reward; may be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8100,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 takes a free one.",
)
@click.option("--device", default="", help="Where models run; default the first accelerator.")
@click.option("--token-env", default="", metavar="NAME", help="Environment variable of the token.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File of the token.")
@click.option("--eight-bit", is_flag=True, help="Round images to 256 levels before scoring.")
@click.option(
    "--batch", default=16, show_default=True, type=click.IntRange(1), help="Images a call."
)
@click.option(
    "--body-mib",
    default=64,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Largest body.",
)
@click.option(
    "--pixels",
    default=2**25,
    show_default=True,
    type=click.IntRange(1),
    help="Most B H W of one request.",
)
@click.option(
    "--requests",
    default=64,
    show_default=True,
    type=click.IntRange(2, 4096),
    help="Requests at once; further ones get 503.",
)
def command(file: Path, overrides: tuple[str, ...], only: tuple[str, ...], **options: Any) -> None:
    """Serve the rewards of a run file over HTTP, for the reward `remote`.

    Only its [reward.KEY] and [evaluation.reward.KEY] tables are read. A request's body has at most
    --body-mib, its images at most --pixels together, and --requests are taken at once. Ctrl-C ends
    it with exit code 130, SIGTERM with 0, once the requests on their way are answered; a second
    Ctrl-C at once.
    """
    from headwater_rewards_remote.application import Limits
    from headwater_rewards_remote.serving import Options, chosen, read_token, serve

    rewards = chosen(file, overrides, only)
    token = read_token(options["token_env"], options["token_file"])
    limits = Limits(
        body=options["body_mib"] * MIB, pixels=options["pixels"], requests=options["requests"]
    )
    settings = Options(
        host=options["host"],
        port=options["port"],
        device=options["device"],
        token=token,
        most=options["batch"],
        eight_bit=options["eight_bit"],
        limits=limits,
    )
    sys.exit(serve(rewards, settings, lambda line: click.echo(line)))
