"""The free surrogate by the words of its four axes: one graph with connectors, as the others."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from joint_graphs import (
    Cache,
    connect,
    discount,
    lagrange_weights,
    mean_distance,
    rescale_factor,
    similarity,
)
from torch import Tensor


@attrs.frozen
class Piece:
    """A segment of a free surrogate: `active` of its nodes are new, the others cached."""

    start: int
    end: int
    nodes: tuple[int, ...]
    active: tuple[int, ...]


@attrs.frozen
class FreeSettings:
    weights: str
    coupling: float
    rescale: float = 0.0
    tau: float | None = None
    support_scale: float | None = None
    """Factor of new velocities but the start's; None where nodes are no supports."""


def free(cache: Cache, pieces: Sequence[Piece], s: FreeSettings) -> tuple[Tensor, Tensor]:
    """The four axes by their words: x_end = x_start - sum over the nodes of w v."""
    w = [node_weights(cache, piece, s.weights) for piece in pieces]
    held = [[w_p[i] for i in p.active] for p, w_p in zip(pieces, w, strict=True)]
    if s.support_scale is None:  # one factor: all step sizes over those of the active steps
        sizes = [cache.h(i) for i in range(pieces[0].start, pieces[-1].end)]
        factors = [rescale_factor(s.rescale, sizes, [h for part in held for h in part])] * len(
            pieces
        )
    else:
        factors = [
            rescale_factor(s.rescale, list(every.values()), active)
            for every, active in zip(w, held, strict=True)
        ]
    x, distances = cache.x(pieces[0].start), []
    for number, (piece, weights, factor) in enumerate(zip(pieces, w, factors, strict=True)):
        predicted = x
        for i in piece.nodes:
            if i not in piece.active:
                v = cache.old_v(i)
            elif i == piece.start and number > 0:
                v = discount(cache.v(i, discount(x, s.coupling)), factor)
            else:
                small = 1.0 if i == piece.start or s.support_scale is None else s.support_scale
                v = discount(cache.v(i, cache.x(i)), small * factor)
            predicted = predicted - weights[i] * v
        distances.append(mean_distance(predicted, cache.x(piece.end)))
        x = connect(predicted, cache.x(piece.end))
    return x, cache.evenly_weighted() if s.tau is None else similarity(distances, s.tau)


def node_weights(cache: Cache, piece: Piece, kind: str) -> dict[int, float]:
    """How much sigma each node's velocity is held for, positive; closed forms."""
    nodes, sigma, end = piece.nodes, cache.sigma, cache.sigma(piece.end)
    if kind == "euler":
        return {i: cache.h(i) for i in nodes}
    if kind == "leap":
        bounds = [*(sigma(i) for i in nodes), end]
        return {i: bounds[a] - bounds[a + 1] for a, i in enumerate(nodes)}
    if kind == "lagrange":
        w = lagrange_weights([sigma(i) for i in nodes], sigma(piece.start), end)
        return {i: -w_i for i, w_i in zip(nodes, w, strict=True)}
    # "hat": each gap between nodes is shared in halves; constant beyond the outer ones
    w = dict.fromkeys(nodes, 0.0)
    w[nodes[0]] += sigma(piece.start) - sigma(nodes[0])
    for left, right in zip(nodes, nodes[1:], strict=False):
        half = (sigma(left) - sigma(right)) / 2
        w[left] += half
        w[right] += half
    w[nodes[-1]] += sigma(nodes[-1]) - end
    return w
