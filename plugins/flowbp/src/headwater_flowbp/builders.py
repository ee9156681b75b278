"""From the four design axes to a surrogate. The named estimators and `surrogate` all end here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
from torch import Generator, Tensor

from headwater.types import Group, Rollout, Surrogate
from headwater_flowbp import quadrature, samplers

Place = Literal["late-biased", "supports", "evenly"]
Weights = Literal["euler", "leap", "lagrange", "uniform", "hat"]
Split = Literal["none", "uniform", "dirichlet", "midpoint", "midpoint-j"]
METRICS = {
    "active": "steps evaluated with gradient",
    "first_step": "first step of the first segment, counted from the noise",
    "last_segment": "steps of the segment that ends at the image",
    "rescale_factor": "factor f of the last segment's rows; see `rescale`",
}
RESIDUALS = {
    "d_0": "with `tau`: mean absolute difference of the last connector's end and the image",
    "d_j": "with `tau`: the same of the first connector, at j",
}


@attrs.frozen(eq=False)
class Axes:
    """The four choices that make a surrogate trajectory."""

    endpoint: Literal["sample", "posterior-mean"]
    stop: float
    """The posterior mean is that of a step uniform over this last fraction."""
    place: Place
    count: int
    """Active steps (late-biased, evenly), or supports of a segment."""
    late_bias: float
    active_supports: int
    """How many supports of a segment are active, from its start."""
    support_scale: float
    """Factor of the rows of active supports that are not the segment's start."""
    weights: Weights
    rescale: float
    split: Split
    cap: int
    tail: float
    coupling: float
    tau: float | None
    """Least distance in the sample weights; None for no weights."""


@attrs.frozen(eq=False)
class Segment:
    """Steps start .. end-1, their nodes, and which of the nodes are active."""

    start: int
    end: int
    nodes: tuple[int, ...]
    active: int
    """The first `active` nodes are evaluated with gradient."""

    @property
    def steps(self) -> range:
        """Its steps."""
        return range(self.start, self.end)


def check_cap(sampler: str, cap: int) -> None:
    """ValueError where a cap is set and nothing reads it."""
    if cap and sampler != "dirichlet":
        raise ValueError(f'cap = {cap} limits only the pairs of "dirichlet", not of {sampler!r}')


def build(axes: Axes, rollout: Rollout, generator: Generator) -> Surrogate:
    """Draw the segments, make a group of each, and read the endpoint."""
    sigmas = [float(s) for s in rollout.sigmas]
    segments, stop = draw_segments(axes, rollout.steps, generator)
    rows = [_rows(axes, segment, sigmas, stop) for segment in segments]
    factors = _factors(axes, segments, rows, sigmas)
    groups = []
    for position, segment in enumerate(segments):
        basis = rows[position][: segment.active] * factors[position]
        basis[1:] *= axes.support_scale if axes.place == "supports" else 1.0
        groups.append(
            Group(
                steps=tuple(segment.steps),
                active=segment.nodes[: segment.active],
                basis=basis,
                coupling=axes.coupling if position else 0.0,
            )
        )
    endpoint = rollout.state(rollout.steps)
    if stop is not None:
        endpoint = rollout.state(stop) - sigmas[stop] * rollout.velocity(stop)
    distances = [] if axes.tau is None else _distances(segments, rows, rollout, sigmas)
    return Surrogate(
        groups=tuple(groups),
        endpoint=endpoint,
        sample_weights=None
        if axes.tau is None
        else quadrature.similarity_weights(distances, axes.tau),
        rollout=rollout,
        diagnostics=_diagnostics(segments, factors, distances),
    )


def draw_segments(axes: Axes, n: int, generator: Generator) -> tuple[list[Segment], int | None]:
    """Segments from noise to image, and the step of the posterior mean if there is one."""
    if axes.endpoint == "posterior-mean":
        least = n - samplers.tail_length(n, axes.stop) + 1
        if axes.place != "supports" and axes.count > least:
            raise ValueError(
                f"{axes.count} active steps of the {least} that the earliest stop of a rollout "
                f"of {n} steps leaves"
            )
        stop = samplers.draw_tail(n, axes.stop, generator)
        if axes.place == "supports":
            return [_supported(axes, stop, n)], stop
        nodes = _place(axes, 0, stop + 1, axes.count, generator)
        return [Segment(0, n, tuple(nodes), len(nodes))], stop
    first = samplers.first_trainable(n, axes.tail)
    if axes.split == "none":
        if axes.place == "supports":
            return [_supported(axes, first, n)], None
        nodes = _place(axes, first, n, axes.count, generator, origin=0)
        return [Segment(first, n, tuple(nodes), len(nodes))], None
    k, j = samplers.draw_pair(axes.split, n, axes.tail, axes.cap, generator)
    if axes.place == "supports":
        return [_supported(axes, k, j), _supported(axes, j, n)], None
    _check_count(axes.count, first, n)
    before, after = samplers.split_count(axes.count, j - first, n - j)
    early = _place(axes, first, j, before, generator)
    late = [j, *_place(axes, j + 1, n, after - 1, generator)]
    return [
        Segment(first, j, tuple(early), len(early)),
        Segment(j, n, tuple(late), len(late)),
    ], None


def _supported(axes: Axes, start: int, end: int) -> Segment:
    nodes = quadrature.supports(start, end, axes.count)
    return Segment(start, end, tuple(nodes), min(axes.active_supports, len(nodes)))


def _place(
    axes: Axes, first: int, end: int, count: int, generator: Generator, origin: int | None = None
) -> list[int]:
    """Active steps of first .. end-1; ValueError where it holds fewer than `count`.

    origin: where the positions of a late bias count from; None for the segment's start.
    """
    _check_count(count, first, end)
    if axes.place == "evenly":
        return samplers.evenly(first, end - 1, count, generator) if count else []
    return samplers.late_biased(first, end, count, axes.late_bias, generator, origin)


def _check_count(count: int, first: int, end: int) -> None:
    if count > end - first:
        raise ValueError(f"{count} active steps of the {end - first} from {first} to {end - 1}")


def _rows(axes: Axes, segment: Segment, sigmas: Sequence[float], stop: int | None) -> Tensor:
    """Rows of all nodes of a segment, (nodes, S), nothing rescaled."""
    nodes, steps = segment.nodes, segment.steps
    if axes.weights == "lagrange":
        return quadrature.lagrange_rows(nodes, steps, sigmas)
    if axes.weights == "uniform":
        return quadrature.uniform_rows(nodes, steps)
    if axes.weights == "leap":
        return quadrature.leap_rows(nodes, steps)
    if axes.weights == "hat":
        return quadrature.hat_rows(nodes, steps, sigmas)
    rows = quadrature.unit_rows(nodes, steps)
    if stop is not None and stop in nodes:
        rows[nodes.index(stop), stop - segment.start :] = 1  # sigma_e is the sum of what is left
    return rows


def _factors(
    axes: Axes, segments: Sequence[Segment], rows: Sequence[Tensor], sigmas: Sequence[float]
) -> list[float]:
    """f = 1 + rescale (total / active - 1) for each segment.

    Supports: |quadrature weight| of all over the active ones, per segment. Else: the step sizes
    of all segments over what the active rows hold, one factor for all.
    """
    weights = [
        quadrature.masses(r, s.steps, sigmas).abs() for r, s in zip(rows, segments, strict=True)
    ]
    if axes.place == "supports":
        ratios = [
            float(w.sum() / w[: s.active].sum()) for w, s in zip(weights, segments, strict=True)
        ]
    else:
        total = sigmas[segments[0].start] - sigmas[segments[-1].end]
        held = sum(float(w.sum()) for w in weights)
        ratios = [total / held] * len(segments)
    return [1 + axes.rescale * (ratio - 1) for ratio in ratios]


def _distances(
    segments: Sequence[Segment], rows: Sequence[Tensor], rollout: Rollout, sigmas: Sequence[float]
) -> list[Tensor]:
    """Mean absolute error of each segment's prediction from all its nodes: (B,) each."""
    out = []
    for segment, segment_rows in zip(segments, rows, strict=True):
        weights = quadrature.masses(segment_rows, segment.steps, sigmas).tolist()
        start, end = rollout.state(segment.start), rollout.state(segment.end)
        velocities = (rollout.velocity(node) for node in segment.nodes)
        out.append(quadrature.miss(start, weights, velocities, end))
    return out


def _diagnostics(
    segments: Sequence[Segment], factors: Sequence[float], distances: Sequence[Tensor]
) -> dict[str, float]:
    out = {
        "active": float(sum(segment.active for segment in segments)),
        "first_step": float(segments[0].start),
        "last_segment": float(segments[-1].end - segments[-1].start),
        "rescale_factor": factors[-1],
    }
    for name, distance in zip(("d_0", "d_j"), reversed(distances), strict=False):
        out[name] = float(distance.mean())
    return out
