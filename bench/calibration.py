"""How near JAGG's bases come to the exact group gradient on the tiny model.

Every basis is judged on rollouts of other prompts and seeds than it was fitted on; the cosine is
between gradients over all trained parameters of one group of W steps, all at the same number of
backwards. Mean over repeats and its standard error.

    python bench/calibration.py [--repeats 5] [--out docs/jagg-cosines.md]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from common import table_text
from torch import Tensor

from headwater.composition import compose
from headwater.engine import evaluate
from headwater.geometry import schedule_of
from headwater.stage import open_stage
from headwater.trainer import Trainer
from headwater.types import Group, Rollout
from headwater_jagg.basis import cut, fit_basis, linear_basis, nearest_basis, resolved
from headwater_jagg.measurement import Part, measure
from headwater_jagg.report import chord_distance, compare

HERE = Path(__file__).parent
DYNAMICS = {
    "dance-sde 0.3": "dynamics={use='dance-sde',eta=0.3}",
    "flow-sde 0.7": "dynamics={use='flow-sde',noise_level=0.7}",
}
INNER = {4: (0, 2), 8: (1, 6)}


class Sample:
    """One scored micro-batch with the upstream of every trained step."""

    def __init__(self, dynamics: str, seed: int) -> None:
        sets = [
            dynamics,
            f"seed={seed}",
            "rollout.steps=17",
            "prompts.per_step=4",
            "evaluation.prompts=''",
        ]
        self.trainer = Trainer(open_stage(compose(HERE / "policy.toml", sets), "cpu"))
        self.trainer._gradient(0, measure_memory=False)
        (item,) = self.trainer.collected
        self.rollout: Rollout = item.rollout
        self.backbone = self.trainer.stage.backbone
        self.steps = schedule_of(self.trainer.stage.run, 0).trained
        group = Group(self.steps, self.steps, torch.eye(len(self.steps)))
        velocities = torch.stack([self.rollout.velocity(i) for i in self.steps])
        upstream = self.trainer.stage.run.algorithm.plugin.compute_upstream(
            group, self.rollout, item.credit, velocities
        )
        # The scale is irrelevant to cosines, and the loss's 1/n is small in float32.
        self.upstream = dict(zip(self.steps, upstream * len(velocities[0]), strict=True))

    def part(self, position: int, steps: tuple[int, ...], nodes: Sequence[int], basis: Tensor):
        """A group as the estimator sees it."""
        return Part(position, steps, resolved(nodes, len(steps)), basis)

    def stacked(self, steps: Sequence[int]) -> Tensor:
        """(S, B, *latent)"""
        return torch.stack([self.upstream[i] for i in steps])

    def gradients(self, step: int, cotangents: Sequence[Tensor]) -> list[list[Tensor]]:
        """J^T c at one step for several c."""
        parameters = list(self.trainer.parameters.values())
        v = evaluate(self.backbone, (step,), self.rollout, (), "stream")[step][1]
        return [
            list(torch.autograd.grad(v, parameters, c.to(v.dtype), retain_graph=True))
            for c in cotangents
        ]


def added(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Sum of gradients."""
    return [sum(tensors[1:], start=tensors[0]) for tensors in zip(*parts, strict=True)]


def likeness(
    test: Sample, steps: tuple[int, ...], bases: dict[str, tuple[tuple[int, ...], Tensor]]
) -> dict[str, tuple[float, float, float]]:
    """Cosine, relative error and norm ratio of every basis's gradient to the exact one."""
    s = test.stacked(steps)
    exact = added([test.gradients(i, [s[j]])[0] for j, i in enumerate(steps)])
    out = {}
    for name, (nodes, basis) in bases.items():
        c = torch.tensordot(basis.to(s), s, dims=1)
        parts = [test.gradients(steps[n], [c[k]])[0] for k, n in enumerate(nodes)]
        out[name] = compare(added(parts), exact)
    return out


def fitted(sample: Sample, steps: tuple[int, ...], nodes: tuple[int, ...], start: Tensor) -> Tensor:
    """The calibrated basis of a group, from one micro-batch."""
    part = sample.part(0, steps, nodes, start)
    found = measure(
        sample.backbone, sample.rollout, part, sample.stacked(steps), fit=True, whole=False
    )
    return fit_basis(start, nodes, found.KK, found.Kt)


def one(dynamics: str, w: int, repeat: int) -> dict[tuple[str, int], tuple[float, float, float]]:
    """All bases and groups of one pair of rollouts."""
    fit, test = Sample(dynamics, 1000 + repeat), Sample(dynamics, 2000 + repeat)
    out = {}
    for position, steps in enumerate(cut(test.steps, w)):
        times = test.rollout.sigmas[list(steps)]
        ends, inner = (0, w - 1), INNER[w]
        linear, near = linear_basis(times, ends), nearest_basis(times, inner)
        bases = {
            "linear, ends": (ends, linear),
            f"nearest, {inner}": (inner, near),
            "calibrated, ends": (ends, fitted(fit, steps, ends, linear)),
            f"calibrated, {inner}": (inner, fitted(fit, steps, inner, near)),
        }
        for name, found in likeness(test, steps, bases).items():
            out[name, position] = found
        far = float(chord_distance(test.rollout.latents[list(steps)], times).max(dim=0)[0].mean())
        out["chord", position] = (far, math.nan, math.nan)
    return out


def mean(values: Sequence[float]) -> str:
    """Mean and its standard error."""
    if len(values) < 2:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, text in DYNAMICS.items():
        for w in (4, 8):
            found = [one(text, w, repeat) for repeat in range(options.repeats)]
            kinds = dict.fromkeys(key for key, _ in found[0])
            for kind in kinds:
                groups = range(16 // w)
                cells = [mean([f[kind, g][0] for f in found]) for g in groups]
                norms = [statistics.mean(f[kind, g][2] for f in found) for g in groups]
                ratios = "" if kind == "chord" else " ".join(f"{n:.2f}" for n in norms)
                title = "distance from the chord" if kind == "chord" else kind
                rows.append([name, str(w), title, *cells, *[""] * (4 - len(cells)), ratios])
            print(f"{name}, W = {w} done", flush=True)
    head = ["dynamics", "W", "basis, nodes", *(f"group {g}" for g in range(4)), "norm ratios"]
    text = table_text(head, rows)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
