"""Fitted bases: what is solved, when it is used, and what it costs.

The toy is nonlinear and its states are shaken off the chord, so that a fit has something to find.
"""

from __future__ import annotations

import attrs
import pytest
import torch
from jagg_toys import (
    BentFlow,
    Silent,
    at_version,
    build,
    clear,
    cosine,
    exact_gradient,
    gradient_of,
    on_a_chord,
    step_gradient,
    toy_rollout,
    update,
    upstream,
    vector,
)

from headwater.engine import MODES
from headwater.markers import hookimpl
from headwater.testing.toy_flow import ToyFlow, relative
from headwater_jagg import Jagg
from headwater_jagg.basis import linear_basis

W = 5


@pytest.fixture(scope="module")
def flow() -> ToyFlow:
    return ToyFlow()


@pytest.fixture(scope="module")
def rollout(flow):
    """Groups 0-4 and 5-9, and a group of one."""
    return toy_rollout(flow, steps=11)


@pytest.fixture(scope="module")
def other(flow):
    """Other samples, on the same steps."""
    return toy_rollout(flow, steps=11, seed=1)


def calibrated(**settings) -> Jagg:
    return Jagg(**{"window": W, "routed": 1.0, "basis": "calibrated"} | settings)


def fits(estimator: Jagg, when: str = "new") -> dict:
    found = estimator.state()[when]["bases"]
    return {tuple(steps): torch.tensor(rows, dtype=torch.float64) for steps, rows in found}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nodes", [(0, -1), (1, 3), (0, 2, 4)])
def test_a_fit_solves_the_ridge_least_squares_of_stacked_gradients(
    flow, rollout, nodes, mode
) -> None:
    """Rows of the ridge are appended to the gradients; lstsq takes no normal equations.

    1e-8: the normal equations square a condition number of at most 1e3.
    """
    estimator = calibrated(nodes=nodes)
    update(estimator, flow, rollout, mode=mode)
    found = fits(estimator)
    assert set(found) == {(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)}
    for steps, basis in found.items():
        for j, step in enumerate(steps):
            active = [steps[k] for k in nodes]
            if step in active:
                unit = [float(step == a) for a in active]
                assert basis[:, j].tolist() == unit
                continue
            s = upstream(flow, rollout, step)
            t = step_gradient(flow, rollout, step, s)
            K = torch.stack([step_gradient(flow, rollout, a, s) for a in active], dim=1)  # (P, A)
            ridge = (1e-6 * K.square().sum()).sqrt() * torch.eye(len(active), dtype=K.dtype)
            rows = torch.cat([K, ridge]), torch.cat([t, torch.zeros_like(t[: len(active)])])
            expected = torch.linalg.lstsq(*rows).solution
            torch.testing.assert_close(basis[:, j], expected, rtol=1e-8, atol=1e-8)


def test_a_fit_is_used_from_the_next_update_on_and_not_before(flow, rollout) -> None:
    estimator = calibrated()
    linear = linear_basis(rollout.sigmas[:W])
    first, _ = update(estimator, flow, rollout)
    again, _ = update(estimator, flow, rollout, seed=1)  # another part of the same update
    for surrogate in (first, again):
        assert torch.equal(surrogate.groups[0].basis, linear)
    fitted = fits(estimator)
    later = build(estimator, flow, at_version(rollout, 1), seed=2)
    for group in later.groups[:2]:
        assert torch.equal(group.basis, fitted[group.steps])
    assert not torch.equal(later.groups[0].basis, linear)
    assert [g.active for g in later.groups] == [g.active for g in first.groups]


@pytest.mark.parametrize("seed", range(5, 13))
def test_a_fit_brings_other_samples_nearer_to_the_exact_gradient(seed) -> None:
    """Where the Jacobian bends in t, which a fit to any samples can learn.

    Without noise: three samples are too few to fit to beside noise of their own.
    """
    bent, estimator = BentFlow(), calibrated(window=6)
    update(estimator, bent, on_a_chord(seed=4))
    fresh = on_a_chord(seed=seed)
    for first in (0, 6):
        batch = attrs.evolve(fresh.batch, trained_steps=tuple(range(first, first + 6)))
        part = attrs.evolve(fresh, batch=batch)
        exact = exact_gradient(bent, part)
        linear = gradient_of(Jagg(window=6, routed=1.0), bent, part)
        fitted = gradient_of(estimator, bent, at_version(part, 1))
        assert cosine(fitted, exact) > cosine(linear, exact)


@pytest.mark.parametrize(
    "settings",
    [{"basis": "calibrated"}, {"routed": "auto"}, {"basis": "calibrated", "routed": "auto"}],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_measurement_changes_no_gradient(flow, rollout, settings, mode) -> None:
    """Bit for bit: it writes into no `.grad`, and not into the update it is from."""
    settings = {"window": W, "routed": 1.0} | settings
    plain = Jagg(window=W, routed=0.0 if settings["routed"] == "auto" else 1.0)
    expected = gradient_of(plain, flow, rollout, mode=mode)
    for middle in ("recompute", "cached"):
        clear(flow)
        estimator = Jagg(middle=middle, **settings)
        surrogate, _ = update(estimator, flow, rollout, mode=mode)
        assert surrogate.measurements != (0, 0)
        tolerance = 0 if middle == "recompute" else 1e-10
        assert relative(vector(flow), expected) <= tolerance


def test_one_micro_batch_of_an_update_is_measured_every_so_often(flow, rollout, other) -> None:
    estimator = calibrated(calibrate_every=3)
    measured = []
    for version in range(7):
        row = []
        for seed, batch in ((0, rollout), (0, other), (1, rollout)):
            surrogate, _ = update(
                estimator, flow, at_version(batch, version), seed=10 * version + seed
            )
            row.append(surrogate.measurements != (0, 0))
        measured.append(row)
    once = [True, False, False]
    never = [False, False, False]
    assert measured == [once, never, never, once, never, never, once]


def test_a_skipped_update_is_not_measured_again(flow, rollout) -> None:
    """The policy version stays, the optimizer step's seed does not."""
    estimator = calibrated()
    assert update(estimator, flow, rollout, seed=0)[0].measurements != (0, 0)
    assert update(estimator, flow, rollout, seed=1)[0].measurements == (0, 0)


def test_a_plan_foresees_the_measurements_and_disturbs_none(flow, rollout) -> None:
    estimator = calibrated(calibrate_every=2)
    versions = [0, 0, 1, 2, 3, 4]  # composing plans step 0 once more
    planned = [build(estimator, None, at_version(rollout, v), seed=v) for v in versions]
    real = [update(estimator, flow, at_version(rollout, v), seed=v)[0] for v in range(5)]
    assert [s.measurements for s in planned[1:6]] == [s.measurements for s in real]
    assert [s.measurements != (0, 0) for s in real] == [True, False, True, False, True]


def test_the_second_part_of_an_update_is_not_planned_to_be_measured(flow, rollout) -> None:
    estimator = calibrated()
    assert build(estimator, None, rollout, seed=0).measurements != (0, 0)
    assert build(estimator, None, rollout, seed=1).measurements == (0, 0)


@pytest.mark.parametrize(
    ("settings", "velocities", "backwards"),
    [
        ({}, 5, 3 * (1 + 2)),
        ({"nodes": (0, 2, 4)}, 5, 2 * (1 + 3)),
        ({"routed": "auto"}, 5, 3 * (1 + 2) + 2),
        ({"routed": "auto", "basis": "linear"}, 5, 5 + 2),
    ],
)
def test_the_work_that_is_declared_is_the_work_that_is_done(
    rollout, settings, velocities, backwards, monkeypatch
) -> None:
    """A fit alone: A + (W - A)(3 + 2A) units a group. The group of one is not measured."""
    calls = []

    class Counting(ToyFlow):
        def velocity(self, x, sigma, conditioning):
            calls.append(torch.is_grad_enabled())
            return super().velocity(x, sigma, conditioning)

    grads = []
    plain = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: grads.append(1) or plain(*a, **k))
    flow = Counting(guidance=1.0)
    surrogate, work = update(calibrated(**settings), flow, rollout)
    assert surrogate.measurements == (2 * velocities, 2 * backwards)
    assert len(grads) == 2 * backwards
    assert len(calls) == work.forwards
    assert work.backwards == sum(len(g.active) for g in surrogate.groups) + 2 * backwards
    if "nodes" not in settings and "routed" not in settings:
        A = 2
        assert velocities + 2 * backwards == A + (W - A) * (3 + 2 * A)


def test_a_step_without_upstream_keeps_its_column(flow, rollout) -> None:
    estimator = calibrated(calibrate_every=1)
    update(estimator, flow, rollout, algorithm=Silent([2]))
    found = fits(estimator)[(0, 1, 2, 3, 4)]
    linear = linear_basis(rollout.sigmas[:W])
    assert torch.equal(found[:, 2], linear[:, 2])
    assert not torch.equal(found[:, 1], linear[:, 1])
    update(estimator, flow, at_version(rollout, 1), algorithm=Silent(range(11)))
    assert torch.equal(fits(estimator)[(0, 1, 2, 3, 4)], found)


def test_upstreams_whose_squares_underflow_are_fitted_alike(flow, rollout) -> None:
    """A fit has no scale: advantages of 1e-200 give the same basis up to rounding."""

    class Tiny(Silent):
        @hookimpl
        def compute_upstream(self, group, velocities):
            return 1e-200 * super().compute_upstream(group, velocities)

    plain, tiny = calibrated(), calibrated()
    update(plain, flow, rollout)
    update(tiny, flow, rollout, algorithm=Tiny(()))
    for steps, basis in fits(plain).items():
        torch.testing.assert_close(fits(tiny)[steps], basis, rtol=1e-9, atol=1e-9)


def test_a_surrogate_built_ahead_is_not_measured_with_another_rollout(flow, rollout, other) -> None:
    """Two are built before either runs: only the last one's own groups are measured."""
    estimator, alone = calibrated(), calibrated()
    ahead = build(estimator, flow, other)
    build(estimator, flow, rollout)
    for group in reversed(ahead.groups):
        s = torch.stack([upstream(flow, other, i) for i in group.steps])
        estimator.aggregate(group, s)
    assert fits(estimator) == {}
    update(estimator, flow, rollout)
    update(alone, flow, rollout)
    for steps, basis in fits(alone).items():
        assert torch.equal(fits(estimator)[steps], basis)
