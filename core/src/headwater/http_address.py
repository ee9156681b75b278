"""Where a server is, and the token that it asks for."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from headwater.errors import InputError


def base_url(_: Any, __: Any, value: str) -> None:
    """Validator of a server's address: http or https, a host, perhaps a port and a path."""
    try:
        parts = urlsplit(value)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError(f"expected an address such as http://127.0.0.1:8000, got {value!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"expected an address without user, query or fragment, got {value!r}")


def token(_: Any, __: Any, value: str) -> None:
    if not (value.isascii() and value.isprintable()):
        raise ValueError("expected a token of printable ASCII; it is not shown here")


def token_of(variable: str) -> str:
    """The token in an environment variable; "" where no variable is named.

    A token is named by its variable because run files are saved with every run.
    """
    if variable and not os.environ.get(variable):
        raise InputError(
            "token", [f"the environment variable {variable} is not set; it should hold the token"]
        )
    return os.environ.get(variable, "") if variable else ""
