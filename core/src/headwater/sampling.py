"""Images and weights from a trained run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import PartialState

from headwater import checkpoints
from headwater.composition import compose
from headwater.errors import InputError
from headwater.geometry import Draw
from headwater.images import save_grid
from headwater.progress import notes
from headwater.randomness import seed_of
from headwater.stage import Stage, open_stage
from headwater.types import Prompt


@torch.no_grad()
def sample(
    run_folder: Path,
    texts: Sequence[str],
    count: int,
    seed: int,
    checkpoint: str,
    out: Path | None,
    note: Callable[[str], None] | None = None,
) -> Path:
    """Draw one image a prompt with the weights of a checkpoint; returns the picture's path.

    texts: prompts; the run's first `count` evaluation prompts where there are none.
    checkpoint: `last`, `best`, `base` (the model before training) or a step.
    note: told what the plugins have to tell.
    """
    if not (run_folder / "run.toml").exists():
        raise InputError(str(run_folder), ["it holds no run (no run.toml)"])
    run = compose(run_folder / "run.toml")
    prompts = tuple(Prompt(text) for text in texts) or run.evaluation_prompts[: max(count, 0)]
    if not prompts:
        raise InputError("sample", ["no prompt: give --prompt, or a run with evaluation prompts"])
    folder = checkpoint_folder(run_folder, checkpoint)
    target = _picture_path(run_folder, f"{checkpoint}-seed{seed}", out)
    stage = open_stage(run, str(PartialState().device))
    if folder is not None:
        restore(stage, folder, run.file.evaluation.weights)
    try:
        stage.backbone.encode(prompts)
    except ValueError as error:
        raise InputError("sample", [str(error)]) from None
    if note is not None:
        for text in notes(run):
            note(text)
    draws = [Draw(p, i, seed_of(seed, "sample", i), part=0) for i, p in enumerate(prompts)]
    rollout = stage.sample(draws, 0, run.file.evaluation.steps)
    images = stage.backbone.decode(rollout.state(rollout.steps))
    save_grid(target, images, [prompt.text for prompt in prompts])
    return target


def export(run_folder: Path, destination: Path, checkpoint: str) -> Path:
    """Write the weights of a checkpoint by the backbone's own `export`; returns the folder.

    checkpoint: `last`, `best` or a step. An existing folder must be empty.
    """
    if not (run_folder / "run.toml").exists():
        raise InputError(str(run_folder), ["it holds no run (no run.toml)"])
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise InputError(str(destination), ["it is not an empty folder; nothing was written"])
    run = compose(run_folder / "run.toml")
    folder = checkpoint_folder(run_folder, checkpoint)
    if folder is None:
        raise InputError("export", ["the base model has no trained weights to write"])
    stage = open_stage(run, str(PartialState().device))
    with torch.no_grad():
        restore(stage, folder, run.file.evaluation.weights)
    destination.mkdir(parents=True, exist_ok=True)
    stage.backbone.export(destination)
    return destination


def _picture_path(run_folder: Path, name: str, out: Path | None) -> Path:
    """Where the picture goes; nothing is overwritten."""
    if out is None:
        folder = run_folder / "samples"
        names = (f"{name}{suffix}.png" for suffix in ("", *(f"-{k}" for k in range(2, 10_000))))
        out = next(folder / n for n in names if not (folder / n).exists())
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise InputError(str(out), ["expected a .png, .jpg or .webp file"])
    if out.exists():
        raise InputError(str(out), ["it is there already; nothing was written"])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(out), [f"its folder cannot be made: {error}"]) from None
    return out


def checkpoint_folder(run_folder: Path, name: str) -> Path | None:
    """A checkpoint by `last`, `best` or a step; None for `base`. InputError without it."""
    if name == "base":
        return None
    last = checkpoints.newest(run_folder)
    if name == "last":
        return last
    if name == "best":
        _, state = checkpoints.load(last, "live")
        name = str(state.get("best") or last.name)
    elif name.isdigit():
        name = f"step-{int(name):06d}"
    else:
        problem = f"expected last, best, base or a step, got {name!r}"
        raise InputError("--checkpoint", [problem])
    folder = last.parent / name
    if not folder.is_dir():
        have = ", ".join(sorted(path.name for path in last.parent.glob("step-*")))
        raise InputError(str(run_folder), [f"no checkpoint {name!r}; it holds {have}"])
    return folder


def restore(stage: Stage, folder: Path, which: str) -> None:
    """Put a checkpoint's weights into the network, without gradient.

    which: "ema" (the live ones where there is none) or "live". InputError where they do not fit.
    """
    weights, _ = checkpoints.load(folder, which)
    parameters = stage.backbone.trainable()
    wrong = sorted(set(weights) ^ set(parameters))
    wrong += [n for n in weights if n in parameters and weights[n].shape != parameters[n].shape]
    if wrong:
        raise InputError(str(folder), [f"its weights do not fit this run: {wrong[0]} and others"])
    for name, value in weights.items():
        parameters[name].copy_(value)
