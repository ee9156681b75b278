"""Where weights lie, how they are read, and what to say where they are not there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from torch import Tensor

_SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".txt", ".json")


@attrs.frozen(eq=False)
class Release:
    """One released file: hub repository, name, size of the download."""

    hub: str
    file: str
    size: str
    key: str = "model"
    """The setting that takes its path."""

    @property
    def how_to_get(self) -> str:
        """What to download and where to put it."""
        return (
            f"The released file is {self.file} of {self.hub} on the hub ({self.size}). Where there "
            f"is a network: `hf download {self.hub} {self.file} --local-dir FOLDER`; then set "
            f"{self.key} to FOLDER/{self.file}."
        )


def is_path(name: str) -> bool:
    """Whether a file or folder is named by a path; anything else is a hub id."""
    return name.startswith((".", "/", "~")) or name.endswith(_SUFFIXES) or Path(name).exists()


def problem_of(name: str, release: Release) -> str:
    """What is wrong with a path or hub id, without reading it; empty if nothing is."""
    if not is_path(name):
        parts = name.split("/")
        if len(parts) == 2 and all(parts) and not any(c.isspace() for c in name):
            return ""
        return f"no file {name!r}, and it is no hub id (owner/name). {release.how_to_get}"
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / release.file
    return "" if path.is_file() else f"no file {str(path)!r}. {release.how_to_get}"


def local_file(name: str, release: Release) -> Path:
    """The file itself, from a path, a folder that holds it, the hub's cache or the hub.

    ValueError says what to download and where to put it.
    """
    problem = problem_of(name, release)
    if problem:
        raise ValueError(problem)
    if is_path(name):
        path = Path(name).expanduser()
        return path / release.file if path.is_dir() else path
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, release.file))
    except Exception as error:
        raise ValueError(
            f"{release.file} of {name} is neither in the hub's cache nor could it be had from the "
            f"hub ({type(error).__name__}: {first_line(error)}). {release.how_to_get}"
        ) from error


def check_same(
    state: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    original: Callable[[str], str],
    source: str,
) -> None:
    """ValueError names the weights that are missing, unknown or of another shape.

    original: gives the name that a weight has in the file, for messages.
    """
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    misshapen = [
        f"{original(name)} {tuple(state[name].shape)}, expected {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in state and state[name].shape != value.shape
    ]
    parts = [
        f"{len(found)} {what} ({_few([original(n) for n in found])})"
        for found, what in (
            (missing, f"of {len(wanted)} weights are missing"),
            (misshapen, f"of {len(wanted)} weights have another shape"),
            (unknown, "are not known"),
        )
        if found
    ]
    if parts:
        raise ValueError(f"{source} does not hold the declared model: {'; '.join(parts)}")


def first_line(error: Exception) -> str:
    """What an error says, in at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _few(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def warn_once(known: set[str], key: str, text: str) -> None:
    """A warning, the first time `key` comes up."""
    if key not in known:
        known.add(key)
        warnings.warn(text, stacklevel=3)
