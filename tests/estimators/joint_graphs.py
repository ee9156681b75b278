"""Every estimator as its paper has it: one autograd graph with connectors.

Nothing here knows of groups, bases or cotangents. A connector holds the cached state as its
value and a prediction as its gradient: `predicted + stop(cached - predicted)`. A discount keeps
a value and scales its gradient: `a x + (1 - a) stop(x)`. Each function returns the endpoint,
with graph, and the weight of each sample's loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from headwater.testing.toy_flow import ToyFlow
from headwater.types import Rollout


def connect(predicted: Tensor, cached: Tensor) -> Tensor:
    return predicted + (cached - predicted).detach()


def discount(x: Tensor, factor: float) -> Tensor:
    """The value of x; `factor` of its gradient. The factor may exceed 1 (a rescale)."""
    return x.detach() + factor * (x - x.detach())


@attrs.frozen(eq=False)
class Cache:
    """A rollout as the papers' code keeps it: states, sigmas and velocities as plain lists."""

    flow: ToyFlow
    rollout: Rollout

    @property
    def N(self) -> int:
        return len(self.rollout.latents) - 1

    @property
    def image(self) -> Tensor:
        return self.x(self.N)

    def x(self, i: int) -> Tensor:
        return self.rollout.latents[i].detach()

    def sigma(self, i: int) -> float:
        return self.rollout.sigmas[i].item()

    def h(self, i: int) -> float:
        return self.sigma(i) - self.sigma(i + 1)

    def old_v(self, i: int) -> Tensor:
        return self.rollout.velocities[i].detach()

    def v(self, i: int, x: Tensor) -> Tensor:
        """The velocity of now at state x and the sigma of step i."""
        sigma = self.rollout.sigmas[i].expand(len(x))
        return self.flow.velocity(x, sigma, self.rollout.batch.conditioning)

    def evenly_weighted(self) -> Tensor:
        return torch.ones(len(self.rollout.batch), dtype=torch.float64)


def bptt(cache: Cache) -> tuple[Tensor, Tensor]:
    return draft_k(cache, cache.N)


def draft_k(cache: Cache, K: int) -> tuple[Tensor, Tensor]:
    """Stop before the last K steps, then a plain differentiable rollout."""
    x = cache.x(cache.N - K)
    for i in range(cache.N - K, cache.N):
        x = x - cache.h(i) * cache.v(i, x)
    return x, cache.evenly_weighted()


def refl(cache: Cache, tau: int, endpoint: str) -> tuple[Tensor, Tensor]:
    """One differentiable step; the reward sees its posterior mean, or the sample."""
    v = cache.v(tau, cache.x(tau))
    if endpoint == "posterior-mean":
        return cache.x(tau) - cache.sigma(tau) * v, cache.evenly_weighted()
    x = cache.x(tau) - cache.h(tau) * v
    for i in range(tau + 1, cache.N):
        x = x - cache.h(i) * cache.old_v(i)
    return connect(x, cache.image), cache.evenly_weighted()


def drtune(
    cache: Cache, trained: Sequence[int], early_stop: int, endpoint: str
) -> tuple[Tensor, Tensor]:
    """The sampling loop with a stopped network input; x0 is estimated at the early stop."""
    x = cache.x(0)
    for i in range(cache.N):
        v = cache.v(i, x.detach())
        if i not in trained:
            v = v.detach()
        if i == early_stop and endpoint == "posterior-mean":
            return x - cache.sigma(i) * v, cache.evenly_weighted()
        x = x - cache.h(i) * v
    return x, cache.evenly_weighted()


def leapalign(
    cache: Cache, anchors: Sequence[int], coupling: float, tau: float
) -> tuple[Tensor, Tensor]:
    """Leaps from anchor to anchor and to the image, x_j^ = x_k - (s_k - s_j) v(x_k)."""
    x = cache.x(anchors[0])
    distances = []
    for start, target in zip(anchors, [*anchors[1:], cache.N], strict=True):
        leap = cache.sigma(start) - cache.sigma(target)
        predicted = x - leap * cache.v(start, discount(x, coupling))
        distances.append(mean_distance(predicted, cache.x(target)))
        x = connect(predicted, cache.x(target))
    return x, similarity(distances, tau)


def mean_distance(predicted: Tensor, cached: Tensor) -> Tensor:
    return (predicted - cached).abs().flatten(1).mean(1).detach()


def similarity(distances: Sequence[Tensor], tau: float) -> Tensor:
    """(B,) one over the sum of the distances, none counted below tau."""
    return 1 / sum(distance.clamp(min=tau) for distance in distances)


def rescale_factor(rescale: float, every: Sequence[float], active: Sequence[float]) -> float:
    return 1 + rescale * (sum(map(abs, every)) / sum(map(abs, active)) - 1)


def euler(
    cache: Cache, x: Tensor, steps: Sequence[int], new: dict[int, Tensor], factor: float
) -> Tensor:
    """The Euler sum over `steps`: new velocities where there are any, else cached ones."""
    for i in steps:
        v = discount(new[i], factor) if i in new else cache.old_v(i)
        x = x - cache.h(i) * v
    return x


def sparse(
    cache: Cache, active: Sequence[int], rescale: float, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Reconstruct the trajectory with K new velocities. first: first trainable step."""
    factor = rescale_factor(
        rescale, [cache.h(i) for i in range(first, cache.N)], [cache.h(i) for i in active]
    )
    new = {i: cache.v(i, cache.x(i)) for i in active}
    x = euler(cache, cache.x(0), range(cache.N), new, factor)
    return connect(x, cache.image), cache.evenly_weighted()


def bridge(
    cache: Cache,
    j: int,
    active: Sequence[int],
    rescale: float,
    coupling: float,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """Two reconstructions, 0 to j and j to the image; v_j sees a discounted x_j."""
    factor = rescale_factor(
        rescale, [cache.h(i) for i in range(first, cache.N)], [cache.h(i) for i in active]
    )
    before = {i: cache.v(i, cache.x(i)) for i in active if i < j}
    x_j = connect(euler(cache, cache.x(0), range(j), before, factor), cache.x(j))
    after = {i: cache.v(i, cache.x(i)) for i in active if i > j}
    after[j] = cache.v(j, discount(x_j, coupling))
    x = euler(cache, x_j, range(j, cache.N), after, factor)
    return connect(x, cache.image), cache.evenly_weighted()


def supports(start: int, target: int, order: int) -> list[int]:
    """Up to `order` steps, even by index from `start` to `target - 1`, halves to even."""
    last = target - 1
    if last - start + 1 <= order:
        return list(range(start, target))
    if order == 1:
        return [start]
    return [start + round(p * (last - start) / (order - 1)) for p in range(order)]


def lagrange_weights(points: Sequence[float], start: float, target: float) -> list[float]:
    """The integral from start to target of each Lagrange polynomial through `points`.

    Sigmas are counted from `start`: powers of small differences keep their digits.
    """
    points, target, start = [p - start for p in points], target - start, 0.0
    weights = []
    for a, point in enumerate(points):
        others = [p for b, p in enumerate(points) if b != a]
        polynomial = Polynomial.fromroots(others) if others else Polynomial([1.0])
        antiderivative = (polynomial / np.prod([point - p for p in others])).integ()
        weights.append(float(antiderivative(target) - antiderivative(start)))
    return weights


def active_supports(support: Sequence[int], mode: str) -> list[int]:
    return {"start": [*support[:1]], "midpoint": [*support[:2]], "all": [*support]}[mode]


@attrs.frozen
class LagrangeSettings:
    coupling: float = 0.1
    tau: float = 0.2
    rescale: float = 0.0
    order: int = 3
    mode: str = "midpoint"
    weights: str = "lagrange"


def lagrange(cache: Cache, k: int, j: int, settings: LagrangeSettings) -> tuple[Tensor, Tensor]:
    """Two quadrature connectors, k to j and j to the image."""
    s = settings
    x_j, d_j = _quadrature(cache, cache.x(k), cache.x(k), k, j, s)
    x_N, d_N = _quadrature(cache, x_j, discount(x_j, s.coupling), j, cache.N, s)
    return x_N, similarity([d_j, d_N], s.tau)


def _quadrature(
    cache: Cache, x: Tensor, network_input: Tensor, start: int, target: int, s: LagrangeSettings
) -> tuple[Tensor, Tensor]:
    """The connector at `target`, and how far its prediction is from the cached state."""
    support = supports(start, target, s.order)
    ends = cache.sigma(start), cache.sigma(target)
    if s.weights == "lagrange":
        w = lagrange_weights([cache.sigma(i) for i in support], *ends)
    else:
        w = [(ends[1] - ends[0]) / len(support)] * len(support)
    active = active_supports(support, s.mode)
    factor = rescale_factor(s.rescale, w, w[: len(active)])
    predicted = x
    for weight, i in zip(w, support, strict=True):
        if i == start:
            v = discount(cache.v(i, network_input), factor)
        elif i in active:
            v = discount(cache.v(i, cache.x(i)), 0.25 * factor)
        else:
            v = cache.old_v(i)
        predicted = predicted + weight * v
    distance = mean_distance(predicted, cache.x(target))
    return connect(predicted, cache.x(target)), distance


def draft_lv(
    cache: Cache, renoised: Sequence[Tensor], owners: Sequence[Sequence[int]]
) -> tuple[list[Tensor], list[list[int]]]:
    """The last step from its cached state, and from each set of re-noised states.

    renoised: n sets (M, *latent); owners: the sample each row of a set belongs to.
    Returns: n + 1 endpoints, and whose they are.
    """
    last = cache.N - 1
    everyone = list(range(len(cache.rollout.batch)))
    x = cache.x(last)
    endpoints, whose = [x - cache.h(last) * cache.v(last, x)], [everyone]
    for states, rows in zip(renoised, owners, strict=True):
        sigma = cache.rollout.sigmas[last].expand(len(states))
        conditioning = cache.rollout.batch.conditioning.index(rows)
        v = cache.flow.velocity(states, sigma, conditioning)
        endpoints.append(states - cache.sigma(last) * v)
        whose.append(list(rows))
    return endpoints, whose
