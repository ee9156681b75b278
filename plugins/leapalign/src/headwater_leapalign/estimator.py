"""The estimator `leapalign`."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Literal

import attrs
import torch
from torch import Generator

from headwater import hookimpl
from headwater.types import Group, Rollout, Surrogate
from headwater.validators import above, fraction_range, in_range
from headwater_leapalign.leaps import draw_anchors, leap_distance, similarity_weights


@attrs.frozen(eq=False)
class LeapAlign:
    """Leaps from random steps to the next and to the image (arXiv 2604.15311).

    One active velocity carries each leap; unbiased only if the velocity is constant along it. A
    fraction of the gradient at each joint flows on to the leap before. Needs an endpoint upstream.
    """

    upstream: ClassVar[Literal["endpoint"]] = "endpoint"
    endpoint: ClassVar[str] = "sample"
    paper: ClassVar[str] = "arXiv 2604.15311"

    coupling: float = attrs.field(default=0.3, validator=in_range(0, 1))
    """Fraction of the gradient at x_j that flows on to step k (the paper's alpha)."""
    tau: float = attrs.field(default=0.1, validator=above(0))
    """Distances below it count as it in the sample weights."""
    leaps: Literal[1, 2, 3] = 2
    """Leaps of the trajectory; 2 is the paper's."""
    range: tuple[float, float] = attrs.field(default=(0.0, 1.0), validator=fraction_range())
    """Part of the steps, from noise (0) to image (1), that leaps start at."""
    similarity_weights: bool = True
    """Weigh each sample by 1 / sum max(d, tau) over its leaps; false: all alike."""

    @hookimpl
    def build_surrogate(self, rollout: Rollout, generator: Generator) -> Surrogate:
        """One group a leap, its first step active, ones as basis."""
        anchors = draw_anchors(rollout.steps, self.leaps, self.range, generator)
        ends = [*anchors, rollout.steps]
        groups = tuple(
            Group(
                steps=tuple(range(start, end)),
                active=(start,),
                basis=torch.ones(1, end - start, dtype=torch.float64),
                coupling=self.coupling if start != anchors[0] else 0.0,
            )
            for start, end in pairwise(ends)
        )
        distances = [
            leap_distance(
                rollout.state(start),
                rollout.velocity(start),
                float(rollout.sigmas[start]) - float(rollout.sigmas[end]),
                rollout.state(end),
            )
            for start, end in pairwise(ends)
        ]
        return Surrogate(
            groups=groups,
            endpoint=rollout.state(rollout.steps),
            sample_weights=similarity_weights(distances, self.tau)
            if self.similarity_weights
            else None,
            rollout=rollout,
            diagnostics={
                "first_step": float(anchors[0]),
                "last_leap": float(rollout.steps - anchors[-1]),
                "d_0": float(distances[-1].mean()),
                **({"d_j": float(distances[-2].mean())} if self.leaps > 1 else {}),
            },
        )
