"""A model folder as diffusers writes it: what its small files say, before any weight is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headwater.errors import InputError, did_you_mean


def model_index(model: str) -> dict[str, Any]:
    """`model_index.json` of a local folder or a hub id. ValueError says what is wrong."""
    return _small_file(model, "", "model_index.json")


def component_config(model: str, component: str, package: str) -> Mapping[str, Any]:
    """Configuration of a component: of the folder, or as `package` ships it for a hub id."""
    known = {} if is_local(model) else released(package)
    if model in known:
        found: Mapping[str, Any] = known[model][component]
        return found
    name = "scheduler_config.json" if component == "scheduler" else "config.json"
    try:
        return _small_file(model, component, name)
    except ValueError as error:
        raise ValueError(f"{error}{did_you_mean(model, list(known))}") from error


@lru_cache
def released(package: str) -> Mapping[str, Any]:
    """Hub id: {component: configuration} of the models that a family's package knows."""
    text = resources.files(package).joinpath("released.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["models"]
    return found


def pipeline_class(path: Path) -> Any:
    """The diffusers class of a pipeline's folder."""
    import diffusers

    return getattr(diffusers, model_index(str(path))["_class_name"])


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Within it a file that cannot be loaded is an InputError of one paragraph."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        hint = "a file is damaged or of another version; copy the pipeline folder anew"
        raise InputError(str(path), [f"it cannot be loaded: {reason}; {hint}"]) from error


def is_local(model: str) -> bool:
    """Whether a model is named by a path; anything else is a hub id."""
    return Path(model).is_dir() or model.startswith((".", "/", "~"))


def downloaded(model: str) -> Path:
    """The folder of a pipeline, fetched where it is a hub id."""
    if is_local(model):
        return Path(model).expanduser()
    from diffusers import DiffusionPipeline

    return Path(DiffusionPipeline.download(model))


def problems_of(model: str, pipelines: Sequence[str], components: Sequence[str]) -> list[str]:
    """What is wrong with a model folder, each in one sentence; a hub id is not looked up."""
    if not is_local(model):
        shape = model.count("/") == 1 and not any(c.isspace() for c in model)
        return [] if shape else [f"model: no folder {model!r}, and it is no hub id (owner/name)"]
    try:
        index = model_index(model)
    except ValueError as error:
        return [f"model: {error}"]
    got = index.get("_class_name", "")
    if got not in pipelines:
        wanted = " or ".join(pipelines)
        return [f"model: {model} holds a {got or 'pipeline of no class'}, expected {wanted}"]
    folder = Path(model).expanduser()
    found = [
        f"model: {model} has no {part}/; copy the whole pipeline folder"
        for part in components
        if index.get(part, [None])[0] is not None and not (folder / part).is_dir()
    ]
    return found + [
        f"model: {model}/{part} holds no weights (*.safetensors); copy the whole pipeline folder"
        for part in components
        if (folder / part / "config.json").is_file() and not _weights(folder / part)
    ]


def _weights(component: Path) -> list[Path]:
    """Weight files, whole or in pieces."""
    return [*component.glob("*.safetensors"), *component.glob("*.bin")]


@lru_cache(maxsize=64)
def _small_file(model: str, component: str, name: str) -> dict[str, Any]:
    path = Path(model).expanduser() / component / name
    if not is_local(model):
        path = _from_hub(model, component, name)
    if not path.is_file():
        raise ValueError(f"{path} is missing; expected a diffusers pipeline folder")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    return found


def _from_hub(model: str, component: str, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, name, subfolder=component or None))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{model!r} is no local folder, and its {component or 'index'} cannot be had from the "
            f"hub ({reason}); download the model and give its folder"
        ) from error
