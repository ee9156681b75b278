"""The comparison: composed, measured rollout by rollout, summarised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from accelerate import PartialState
from torch import Tensor

from headwater.composition import Run, compose
from headwater.discovery import find, import_class
from headwater.errors import InputError
from headwater.runfile import read
from headwater.settings import unstructure
from headwater.stage import open_stage
from headwater.statistics import without_nan
from headwater.types import Request
from headwater_lab.gradients import Trained
from headwater_lab.measurement import Cached, Pass, Probe, Record, cache, measure
from headwater_lab.specs import Spec, read_specs, refuse_estimator_overrides
from headwater_lab.summary import costs, reference_summary, summarised
from headwater_lab.watching import Part, Watch

REFERENCE = {"endpoint": "bptt", "per-step": "exact"}
"""The exact gradient by the algorithm's upstream."""


@attrs.frozen(eq=False)
class Options:
    """How much is measured."""

    rollouts: int = 4
    draws: int = 8
    """Gradients of every rollout of an estimator that draws indices."""
    seed: int | None = None
    """In the place of the run file's."""
    by_step: bool = True
    """Compare the part of every active step, for a second evaluation of it."""


@attrs.frozen(eq=False)
class Progress:
    """One gradient or one estimator on one rollout is done."""

    rollout: int
    """From 1; 0 for the rollout that only estimators with a memory see."""
    rollouts: int
    label: str
    draw: int
    """From 1."""
    record: Record | None = None
    """Once all draws are done; None for the reference."""


@attrs.frozen(eq=False)
class Comparison:
    """All that was measured."""

    run: Run
    probes: Sequence[Probe]
    records: dict[str, list[Record]]
    """By label, one a rollout."""
    blocks: Sequence[str]
    summary: dict[str, Any]
    """Ready for JSON."""


Told = Callable[[Progress], None]


def compare(
    file: Path,
    estimators: str | None = None,
    overrides: Sequence[str] = (),
    options: Options | None = None,
    told: Told = lambda progress: None,
) -> Comparison:
    """Measure estimators on the same rollouts of a run file's weights before training.

    estimators: as `read_specs` takes them; None for the run file's own. Raises InputError for
    all problems at once, before any weight loads, and where the reference is zero throughout.
    """
    options = options or Options()
    shared, runs = composed(file, estimators, overrides, options.seed)
    process = PartialState()
    if process.num_processes > 1:
        raise InputError("compare", [f"runs in one process, got {process.num_processes}"])
    return _Session(shared, runs, str(process.device), options, told).run()


def composed(
    file: Path, estimators: str | None, overrides: Sequence[str], seed: int | None
) -> tuple[Run, dict[str, Run]]:
    """The run with the reference as its estimator, and a run for every estimator by label."""
    sets = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    if estimators is not None:
        refuse_estimator_overrides(overrides)
        specs = read_specs(estimators)
    else:
        table = read(file, sets).estimator
        specs = [Spec(table.use, {"use": table.use, **table.core, **table.settings})]
    use = read(file, sets).algorithm.use
    algorithm: Any = import_class(find("algorithm", use))
    upstream = getattr(algorithm, "upstream", "endpoint")
    shared = compose(file, [*sets, f"estimator={{use='{REFERENCE[upstream]}'}}"])
    runs, problems = {}, []
    for spec in specs:
        try:
            runs[spec.label] = compose(file, [*sets, *spec.overrides()])
        except InputError as error:
            problems += [f"{spec.label}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(str(file), problems)
    return shared, runs


class _Session:
    """Loaded plugins, and what was measured so far."""

    def __init__(
        self, shared: Run, runs: dict[str, Run], device: str, options: Options, told: Told
    ) -> None:
        self.shared, self.options, self.told = shared, options, told
        self.stage = stage = open_stage(shared, device)
        self.trained = Trained.of(stage.backbone.trainable())
        self.watch = Watch(self.trained, stage.backbone)
        watched, name = options.by_step, shared.estimator.entry.name
        self.reference = Probe.on(name, stage, shared, self.watch, watched=watched)
        self.probes = [
            Probe.on(label, stage, run, self.watch, watched=watched) for label, run in runs.items()
        ]
        self.gradient = self.trained.buffer()
        self.records: dict[str, list[Record]] = {label: [] for label in runs}
        self.squares: list[Tensor] = []
        self.passes: list[Pass] = []
        per_step = shared.file.prompts.per_step
        self.parts = sorted({per_step // r.file.estimator.core["draws"] for r in runs.values()})

    def run(self) -> Comparison:
        """All rollouts."""
        version = 0
        if any(probe.remembers for probe in self.probes):
            self._warm(version)
            version += 1
        for number in range(self.options.rollouts):
            self._rollout(number, cache(self.stage, number, version + number, self.parts))
        if not any(float(square.sum()) > 0 for square in self.squares):
            raise InputError(
                "compare",
                [
                    "the reference gradient is zero on every rollout: no sample is below its "
                    "margin, or no group has a spread of rewards; draw more, or larger groups"
                ],
            )
        blocks = self.trained.blocks
        return Comparison(self.shared, self.probes, self.records, blocks, self._summary())

    def _warm(self, version: int) -> None:
        """One more rollout, uncounted, for estimators that fit something to earlier ones.

        To them it is the first optimizer step of a run whose weights never change.
        """
        cached = cache(self.stage, self.options.rollouts, version, self.parts)
        for probe in self.probes:
            if probe.remembers:
                probe.gradient(cached, None)
                self.told(Progress(0, self.options.rollouts, probe.label, 1))

    def _rollout(self, number: int, cached: Cached) -> None:
        self.watch.references.clear()
        self.watch.keeping = self.options.by_step
        found, made = self.reference.gradient(cached, 0)
        self.watch.keeping = False
        for mine, value in zip(self.gradient, found, strict=True):
            mine.copy_(value)
        self.squares.append(self.trained.inner(self.gradient, self.gradient))
        self.passes.append(made)
        count = self.options.rollouts
        self.told(Progress(number + 1, count, self.reference.label, 1))
        for probe in self.probes:
            said = partial(self._said, number + 1, probe.label)
            record = measure(probe, cached, self.gradient, self.options.draws, said)
            self.records[probe.label].append(record)
            last = len(record.passes)
            self.told(Progress(number + 1, count, probe.label, last, record))
        if number == 0:
            for probe in (self.reference, *self.probes):
                probe.measure_memory(cached)

    def _said(self, rollout: int, label: str, draw: int) -> None:
        self.told(Progress(rollout, self.options.rollouts, label, draw))

    def _summary(self) -> dict[str, Any]:
        run, options, blocks = self.shared, self.options, self.trained.blocks
        table, plugin = run.file.rollout, run.backbone.plugin
        grid = plugin.sigmas(table.steps, plugin.shape(Request(table.height, table.width)))
        parts: list[list[Part]] = [list(made.parts) for made in self.passes]
        reference = {
            "name": self.reference.label,
            **reference_summary(self.squares, parts, blocks),
            **costs([[made] for made in self.passes]),
            "peak_memory_bytes": self.reference.peak_memory,
        }
        estimators = [
            {
                "name": probe.label,
                "use": probe.stage.run.estimator.entry.name,
                "settings": unstructure(probe.stage.run.estimator.plugin),
                **summarised(self.records[probe.label], blocks),
                "peak_memory_bytes": probe.peak_memory,
            }
            for probe in self.probes
        ]
        found = {
            "run": run.file.name,
            "algorithm": run.algorithm.entry.name,
            "mode": run.file.engine.mode,
            "rollouts": options.rollouts,
            "samples": run.file.prompts.per_step
            * run.file.prompts.group
            * run.file.algorithm.core["updates"],
            "draws": options.draws,
            "seed": run.file.seed,
            "trained_parameters": sum(p.numel() for p in self.trained.parameters),
            "sigmas": [float(sigma) for sigma in grid],
            "reference": reference,
            "estimators": estimators,
        }
        cleaned: dict[str, Any] = without_nan(found)
        return cleaned
