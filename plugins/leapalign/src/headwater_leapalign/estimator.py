"""The estimator `leapalign`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar, Literal

import attrs
import torch
from torch import Generator

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import above, fraction_range, in_range, one_of
from headwater_leapalign.leaps import draw_anchors, leap_distance, similarity_weights


@attrs.frozen(eq=False)
class LeapAlign:
    """Leaps from random steps to the next and to the image (arXiv 2604.15311).

    One active velocity carries each leap; unbiased only if the velocity is constant along it. A
    fraction of the gradient at each joint flows on to the leap before. Needs an endpoint upstream.

    Two leaps are the paper's: k to j, j to the image. d_j and d_0 are how far each leap, taken
    with its cached velocity from its cached start, misses the cached state it ends at. With one
    leap, k to the image, there is no joint and only d_0; with three, i to k to j to the image,
    both joints are coupled and the distance at k is a third term of the sample weights.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = "arXiv 2604.15311"
    title: ClassVar[str] = "LeapAlign"
    choices: ClassVar[Mapping[str, str]] = {
        "endpoint": "the sample",
        "active": "the first step of each of `leaps` leaps, drawn uniformly",
        "weights": "the whole leap",
        "coupling": "`coupling` at each joint",
    }
    metrics: ClassVar[Mapping[str, str]] = {
        "active": "leaps, each with one active step",
        "first_step": "where the first leap starts, counted from the noise",
        "last_leap": "steps of the leap to the image",
        "d_0": "how far the leap to the image misses the cached image: mean absolute difference",
        "d_j": "the same of the leap before, at its joint j",
        "d_k": "the same at the joint k of three leaps",
    }

    coupling: float = attrs.field(default=0.3, validator=in_range(0, 1))
    """Fraction of the gradient at each joint that flows on to the leap before (paper: alpha)."""
    tau: float = attrs.field(default=0.1, validator=above(0))
    """Distances below it count as it in the sample weights."""
    leaps: Literal[1, 2, 3] = attrs.field(default=2, validator=one_of(1, 2, 3))
    """Leaps of the trajectory; 2 is the paper's."""
    range: tuple[float, float] = attrs.field(default=(0.0, 1.0), validator=fraction_range())
    """Part of the steps, from noise (0) to image (1), that leaps start at."""
    similarity_weights: bool = True
    """Weigh each sample by 1 / sum max(d, tau) over its leaps; false: all alike."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group a leap, its first step active, ones as basis."""
        anchors = draw_anchors(rollout.steps, self.leaps, self.range, generator)
        leaps = list(pairwise([*anchors, rollout.steps]))
        distances = [
            leap_distance(
                rollout.state(start),
                rollout.velocity(start),
                float(rollout.sigmas[start]) - float(rollout.sigmas[end]),
                rollout.state(end),
            )
            for start, end in leaps
        ]
        diagnostics = {
            "active": float(len(leaps)),
            "first_step": float(anchors[0]),
            "last_leap": float(rollout.steps - anchors[-1]),
        }
        for name, distance in zip(("d_0", "d_j", "d_k"), reversed(distances), strict=False):
            diagnostics[name] = float(distance.mean())
        return Surrogate(
            groups=tuple(self._group(start, end, anchors[0]) for start, end in leaps),
            endpoint=rollout.state(rollout.steps),
            sample_weights=similarity_weights(distances, self.tau)
            if self.similarity_weights
            else None,
            rollout=rollout,
            diagnostics=diagnostics,
        )

    def _group(self, start: int, end: int, first: int) -> Group:
        """Steps start .. end-1, all carried by the first; the first leap has no joint."""
        return Group(
            steps=tuple(range(start, end)),
            active=(start,),
            basis=torch.ones(1, end - start, dtype=torch.float64),
            coupling=self.coupling if start != first else 0.0,
        )
