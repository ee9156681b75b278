"""A model folder as diffusers writes it: what its small files say, before any weight is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any


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
    return _small_file(model, component, name)


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
    return [
        f"model: {model} has no {part}/; copy the whole pipeline folder"
        for part in components
        if index.get(part, [None])[0] is not None and not (folder / part).is_dir()
    ]


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
