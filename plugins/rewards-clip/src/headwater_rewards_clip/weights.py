"""Where weights lie, how they are read, and what to say where they are not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from headwater.tensor_files import read_tensors
from headwater_rewards_clip.architecture import Architecture, transformers_config
from headwater_rewards_clip.conversion import differences, to_transformers

if TYPE_CHECKING:
    from transformers import CLIPModel

_SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")


@attrs.frozen(eq=False)
class Release:
    """Released weights: a hub repository, a file of it, and how large the download is."""

    hub: str
    file: str
    """The one file to fetch, or empty for a transformers repository."""
    size: str
    sizes: Architecture
    """What a checkpoint file of this release holds."""

    @property
    def missing(self) -> str:
        """How to get it."""
        what = f"{self.file} of {self.hub}" if self.file else self.hub
        inside = f"/{self.file}" if self.file else ""
        command = " ".join(["hf download", self.hub, self.file]).strip()
        return (
            f"The released weights are {what} on the hub ({self.size}). Where there is a network: "
            f"`{command} --local-dir FOLDER`; then set model to FOLDER{inside}."
        )


def is_path(model: str) -> bool:
    """Whether a model is named by a path; anything else is a hub id."""
    named = model.startswith((".", "/", "~")) or model.endswith(_SUFFIXES)
    return named or Path(model).exists()


def is_hub_id(model: str) -> bool:
    """Whether it reads owner/name, and names nothing here."""
    parts = model.split("/")
    return (
        len(parts) == 2
        and all(parts)
        and not any(c.isspace() for c in model)
        and not is_path(model)
    )


def path_problem(model: str, release: Release) -> str:
    """What is wrong with a path or hub id, without reading weights; empty if nothing is."""
    if is_hub_id(model):
        return ""
    if not is_path(model):
        return f"no file or folder {model!r}, and it is no hub id (owner/name). {release.missing}"
    path = Path(model).expanduser()
    if not path.exists():
        return f"no file or folder {model!r}. {release.missing}"
    if path.is_file() or (path / "config.json").is_file():
        return ""
    if release.file and (path / release.file).is_file():
        return ""
    wanted = f"neither config.json nor {release.file}" if release.file else "no config.json"
    return f"the folder {model!r} holds {wanted}. {release.missing}"


def is_file(model: str, release: Release) -> bool:
    """Whether `model` is one checkpoint file, whose sizes are declared and not read."""
    if not is_path(model):
        return bool(release.file) and model == release.hub
    path = Path(model).expanduser()
    return not (path.is_dir() and (path / "config.json").is_file())


def load_clip(
    model: str,
    release: Release,
    sizes: Architecture | None = None,
    dtype: torch.dtype = torch.float32,
) -> CLIPModel:
    """A frozen CLIPModel on the CPU, every weight accounted for.

    model: a checkpoint file with open_clip's or transformers' names, a folder of transformers, or
    a hub id. sizes: of a checkpoint file; the release's where there are none.
    ValueError says in one paragraph what is wrong.
    """
    problem = path_problem(model, release)
    if problem:
        raise ValueError(problem)
    if not is_file(model, release):
        clip = _pretrained(model, release, dtype)
    else:
        path = _local(model, release)
        clip = clip_from_state(read_tensors(path), sizes or release.sizes, dtype, str(path))
    return clip.eval().requires_grad_(requires_grad=False)


def clip_from_state(
    state: dict[str, Tensor],
    sizes: Architecture,
    dtype: torch.dtype = torch.float32,
    source: str = "the checkpoint",
) -> CLIPModel:
    """A frozen CLIPModel of weights under open_clip's or transformers' names, loaded strictly."""
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(**transformers_config(sizes))
    with torch.device("meta"):
        clip = CLIPModel(config)
    try:
        if any(name.startswith("text_model.") for name in state):
            state = _known(state, clip)
        else:
            state = to_transformers(state, sizes)
    except ValueError as error:
        raise ValueError(
            f"{source} is not the CLIP model that is declared: {error}. Another model's sizes are "
            f"set in `architecture`."
        ) from None
    state = {name: value.to(dtype) for name, value in state.items()}
    clip.load_state_dict(state, strict=True, assign=True)
    for module in clip.modules():  # no weights, so a checkpoint does not bring them
        if "position_ids" in dict(module.named_buffers(recurse=False)):
            count = module.position_ids.shape[-1]
            module.position_ids = torch.arange(count).expand(1, -1)
    return clip.eval().requires_grad_(requires_grad=False)


def _known(state: dict[str, Tensor], clip: Any) -> dict[str, Tensor]:
    """Weights under transformers' names; old files hold position numbers too."""
    state = {k: v for k, v in state.items() if not k.endswith(".position_ids")}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    fault = differences(shapes, {k: tuple(v.shape) for k, v in clip.state_dict().items()})
    if fault:
        raise ValueError(fault)
    return state


HEAD = "sac+logos+ava1-l14-linearMSE.pth"
HEAD_MISSING = (
    f"The released layers are {HEAD} (3.7 MB) of the repository "
    f"christophschuhmann/improved-aesthetic-predictor on GitHub; put the file into "
    f"~/.cache/headwater, or set head to its path."
)


def read_head(path: str) -> dict[str, Tensor]:
    """The aesthetic predictor's layers; an empty path is the released file's usual place."""
    file = Path(path or f"~/.cache/headwater/{HEAD}").expanduser()
    if not file.is_file():
        raise ValueError(f"no file {str(file)!r}. {HEAD_MISSING}")
    return read_tensors(file)


def _local(model: str, release: Release) -> Path:
    """The checkpoint file, from the hub's cache or the hub where it is named by id."""
    if is_path(model):
        path = Path(model).expanduser()
        return path / release.file if path.is_dir() else path
    try:
        return _from_hub(release.hub, release.file)
    except Exception as error:
        raise ValueError(_unreachable(model, release, error)) from error


def _from_hub(repository: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repository, file))


def _pretrained(model: str, release: Release, dtype: torch.dtype) -> CLIPModel:
    """A folder or hub id of transformers; weights that are missing or left over are errors."""
    from transformers import CLIPModel

    path = str(Path(model).expanduser()) if is_path(model) else model
    try:
        if not is_path(model):
            _from_hub(model, "config.json")  # one attempt, not one for every file
        clip, report = CLIPModel.from_pretrained(
            path, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )  # what does not match is an error, below
    except Exception as error:
        if is_path(model):
            raise ValueError(f"{model} is no loadable CLIP model: {_first(error)}") from error
        raise ValueError(_unreachable(model, release, error)) from error
    faults = {kind: sorted(map(str, report[f"{kind}_keys"])) for kind in _KINDS}
    told = [f"{len(names)} {kind} ({names[0]}, ...)" for kind, names in faults.items() if names]
    if told:
        raise ValueError(f"{model} is not a whole CLIP model; weights: {'; '.join(told)}")
    return clip


_KINDS = ("missing", "unexpected", "mismatched")


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _unreachable(model: str, release: Release, error: Exception) -> str:
    known = model == release.hub
    where = release.missing if known else "Download it and set model to its folder."
    return (
        f"{model} is neither in the hub's cache nor could it be had from the hub "
        f"({type(error).__name__}: {_first(error)}). {where}"
    )
