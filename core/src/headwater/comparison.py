"""The model before and after alignment on the same prompts and seeds, judged by held-out rewards.

Two passes over the same samples: with the weights as they are loaded, then with a checkpoint's.
There is one model at any time, and `[evaluation] batch` samples. Images are rounded to 8 bits
before anything looks at them, so that every number can be had again from the saved pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from accelerate import PartialState
from torch import Tensor

from headwater import diversity, processes
from headwater.comparison_report import build, scores_lines
from headwater.comparison_setup import Request, Setup, prepare
from headwater.composition import Named
from headwater.errors import GuardError, HeadwaterError, InputError, OutputError
from headwater.faults import blamed, nonfinite
from headwater.geometry import Draw, micro_batches
from headwater.images import from_file, save_pairs, to_pixels
from headwater.progress import notes
from headwater.randomness import seed_of
from headwater.run_folder import is_unwritable, write_text
from headwater.sampling import restore
from headwater.stage import Stage, open_stage
from headwater.statistics import without_nan
from headwater.types import Prompt, at_least_float32

SHEET = 16
"""Prompts on one picture."""


@attrs.define(eq=False)
class Pass:
    """What one pass over the samples gave."""

    scores: dict[str, list[float]]
    """KEY: one value a sample, the samples of a prompt together."""
    diversity: dict[str, list[float]] = attrs.field(factory=dict)
    """Measure: one value a prompt; empty with one sample a prompt."""


@torch.no_grad()
def compare(
    request: Request,
    said: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Sample, judge and write everything into a new folder; returns what `eval.json` holds.

    said: told the samples drawn so far, and all of them. note: what the plugins have to tell.
    InputError where something is wrong with the request, before any weight loads.
    """
    began = time.monotonic()
    if processes.world() > 1:
        raise InputError("eval", [f"it runs in one process, got {processes.world()}"])
    setup = prepare(request)
    folder = _free(request)
    draws = draws_of(setup.run.evaluation_prompts, request.seeds, request.seed)
    with _made(folder):
        stage = open_stage(setup.run, str(PartialState().device))
        if note is not None:
            for text in notes(setup.run):
                note(text)
        passes = []
        for number, name in enumerate(("base", "aligned")):
            if name == "aligned" and setup.checkpoint is not None:
                restore(stage, setup.checkpoint, setup.weights)
            place = folder / "images" / name
            place.mkdir(parents=True)
            tell = _counted(said, number * len(draws), 2 * len(draws))
            passes.append(_pass(stage, draws, request.seeds, place, tell))
        seconds = time.monotonic() - began
        report = build(setup, request, passes[0], passes[1], seconds, str(folder))
        _write(folder, setup, request, draws, passes, without_nan(report))
    return report


def draws_of(prompts: Sequence[Prompt], seeds: int, seed: int) -> list[Draw]:
    """`seeds` samples of each prompt; the noise of one is a function of seed, prompt and number."""
    return [
        Draw(prompt, i, seed_of(seed, "eval", i, s), part=0)
        for i, prompt in enumerate(prompts)
        for s in range(seeds)
    ]


def picture_name(index: int, seeds: int) -> str:
    """File of sample `index`: number of its prompt, and which of its samples it is."""
    return f"{index // seeds:05d}-{index % seeds}.png"


def _pass(
    stage: Stage, draws: Sequence[Draw], seeds: int, place: Path, tell: Callable[[int], None]
) -> Pass:
    """Sample and judge everything with the weights that are in place."""
    run = stage.run
    size = run.file.evaluation.batch or run.file.prompts.micro_batch
    out, waiting, done = Pass({key: [] for key in run.held_out}), _Waiting(seeds), 0
    for batch in micro_batches(draws, size):
        rollout = stage.sample(batch, 0, run.file.evaluation.steps)
        images = rounded(stage.backbone.decode(rollout.state(rollout.steps)))
        values = stage.score(images, rollout.batch, run.held_out)
        fine = all(bool(torch.isfinite(v).all()) for v in values.values())
        if not fine and run.file.guard.nonfinite_reward == "fail":
            raise GuardError(nonfinite(values, rollout.batch))
        for key, value in values.items():
            out.scores[key] += value.double().tolist()
        for offset, image in enumerate(images):
            to_pixels(image).save(place / picture_name(done + offset, seeds))
        if seeds > 1:
            for measures in waiting.add(images.cpu(), _features(images, run.held_out)):
                for key, number in measures.items():
                    out.diversity.setdefault(key, []).append(number)
        done += len(batch)
        tell(done)
    return out


def rounded(images: Tensor) -> Tensor:
    """Images as a picture file holds them: 256 levels in [0, 1], at least float32."""
    return (at_least_float32(images).clamp(0, 1) * 255).round() / 255


def _features(images: Tensor, rewards: Mapping[str, Named]) -> dict[str, Tensor]:
    """(B, D) of every embedding: the rewards' own, by their keys."""
    out = {}
    for key, named in rewards.items():
        if hasattr(named.plugin, "embed"):
            with blamed(named, "embed"):
                found = named.plugin.embed(images)
            if found.dim() != 2 or len(found) != len(images):
                raise HeadwaterError(
                    f"[{named.key}] ({named.entry.title}): expected features of shape "
                    f"({len(images)}, D), got {tuple(found.shape)}"
                )
            out[key] = found.float().cpu()
    return out


class _Waiting:
    """Collects the samples of a prompt, which may come in several micro-batches."""

    def __init__(self, seeds: int) -> None:
        self.seeds = seeds
        self.images: list[Tensor] = []
        self.features: dict[str, list[Tensor]] = {}

    def add(self, images: Tensor, features: Mapping[str, Tensor]) -> Iterator[dict[str, float]]:
        """Samples in their order. Yields the measures of each prompt that is complete."""
        for i, image in enumerate(images):
            self.images.append(image)
            for key, rows in features.items():
                self.features.setdefault(key, []).append(rows[i])
            if len(self.images) == self.seeds:
                yield self._measures()
                self.images, self.features = [], {}

    def _measures(self) -> dict[str, float]:
        images = torch.stack(self.images)
        pixels = diversity.mean_square_distance(diversity.low_resolution(images))
        measures = {"pixel_spread": diversity.pixel_spread(images), "pixels": pixels}
        for key, rows in self.features.items():
            measures[f"embedding/{key}"] = diversity.cosine_distance(torch.stack(rows))
        return measures


def _free(request: Request) -> Path:
    """The folder to write; nothing is overwritten."""
    folder = request.out
    if folder is None:
        names = (request.run_folder / f"eval-{number:03d}" for number in range(1, 100_000))
        return next(name for name in names if not name.exists())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(str(folder), ["it is not an empty folder; nothing was written"])
    return folder


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make the folder; gone again where nothing came into it. OutputError where a disk is full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), [f"the output folder cannot be made: {error}"]) from None
    try:
        yield
    except OSError as error:
        if not is_unwritable(error):
            raise
        raise OutputError(f"{folder}: the evaluation cannot be written: {error}") from error
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _counted(
    said: Callable[[int, int], None] | None, before: int, whole: int
) -> Callable[[int], None]:
    return lambda done: said(before + done, whole) if said is not None else None


def _write(
    folder: Path,
    setup: Setup,
    request: Request,
    draws: Sequence[Draw],
    passes: Sequence[Pass],
    report: Mapping[str, Any],
) -> None:
    """Scores, side-by-side pictures and, last, the report."""
    names = [picture_name(i, request.seeds) for i in range(len(draws))]
    lines = scores_lines(draws, names, passes[0].scores, passes[1].scores)
    write_text(folder / "scores.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    shown = setup.run.evaluation_prompts[: request.grid]
    for start in range(0, len(shown), SHEET):
        texts = [prompt.text for prompt in shown[start : start + SHEET]]
        rows = [names[i * request.seeds] for i in range(start, start + len(texts))]
        base, aligned = (
            torch.stack([from_file(folder / "images" / side / row) for row in rows])
            for side in ("base", "aligned")
        )
        target = folder / "grids" / f"grid-{start // SHEET + 1:02d}.png"
        target.parent.mkdir(exist_ok=True)
        save_pairs(target, base, aligned, texts, headings=("base", "aligned"))
    write_text(folder / "eval.json", json.dumps(report, indent=1))
