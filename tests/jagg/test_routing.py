"""Which groups are made, the cache, and settings that contradict each other."""

from __future__ import annotations

import warnings

import attrs
import pytest
import torch
from jagg_toys import at_version, build, gradient_of, toy_rollout

from headwater.settings import structure, unstructure
from headwater.testing.toy_flow import ToyFlow, relative
from headwater_jagg import Jagg


@pytest.fixture(scope="module")
def flow() -> ToyFlow:
    return ToyFlow()


@pytest.fixture(scope="module")
def rollout(flow):
    """Eighteen steps: groups of four at 0, 4, 8, 12, and one of two."""
    return toy_rollout(flow, steps=18)


def test_the_first_groups_are_routed_and_the_others_go_step_by_step(flow, rollout) -> None:
    surrogate = build(Jagg(), flow, rollout)
    assert [g.steps for g in surrogate.groups[:3]] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert [g.active for g in surrogate.groups[:3]] == [(0, 3), (4, 7), (8, 11)]
    assert [g.steps for g in surrogate.groups[3:]] == [(i,) for i in range(12, 18)]
    assert all(g.coupling == 0 for g in surrogate.groups)
    assert surrogate.endpoint is None
    assert surrogate.rollout is rollout
    assert surrogate.measurements == (0, 0)


def test_a_short_group_that_is_routed_has_every_step_active(flow, rollout) -> None:
    last = build(Jagg(routed=1.0), flow, rollout).groups[-1]
    assert last.steps == last.active == (16, 17)
    assert torch.equal(last.basis, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("routed", "count"), [(0.0, 0), (0.09, 0), (0.1, 1), (0.5, 3), (0.6, 3), (0.7, 4), (1.0, 5)]
)
def test_the_routed_fraction_rounds_half_up(flow, rollout, routed, count) -> None:
    groups = build(Jagg(routed=routed), flow, rollout).groups
    assert sum(len(g.steps) > 1 for g in groups) == count


def test_a_nearest_basis_and_inner_nodes_reach_the_groups(flow, rollout) -> None:
    group = build(Jagg(nodes=(0, 2), basis="nearest"), flow, rollout).groups[1]
    assert group.active == (4, 6)
    t = rollout.sigmas[4:8]
    assert group.basis[0].tolist() == [float(abs(x - t[0]) <= abs(x - t[2])) for x in t]
    assert group.basis.sum(0).tolist() == [1.0] * 4


def test_the_cache_gives_the_same_gradient_before_the_first_update(flow, rollout) -> None:
    """The cached velocities were evaluated in the same batch: 1e-10 is far above rounding."""
    cached, plain = Jagg(middle="cached"), Jagg()
    found = gradient_of(cached, flow, rollout)
    assert relative(found, gradient_of(plain, flow, rollout)) < 1e-10
    assert build(cached, flow, rollout).cached_velocities
    assert cached.measured()["recomputed"] == 0
    assert "recomputed" not in plain.measured()


def test_the_cache_is_left_when_the_weights_have_changed_and_that_is_counted(rollout) -> None:
    flow, cached = ToyFlow(), Jagg(middle="cached")
    with torch.no_grad():
        for parameter in flow.network.parameters():
            parameter.mul_(1.1)
    later = at_version(rollout, 1)
    found = gradient_of(cached, flow, later)
    assert relative(found, gradient_of(Jagg(), flow, later)) < 1e-10
    gradient_of(cached, flow, later)
    assert cached.measured() == {"routed_groups": 3.0, "recomputed": 2.0}
    assert cached.measured() == {}, "measurements are drained"
    # A stale cache would have shown: the same call believes it where the version says so.
    stale = gradient_of(Jagg(middle="cached"), flow, rollout)
    assert relative(stale, found) > 1e-2


def test_a_rollout_without_velocities_is_recomputed_by_itself(flow, rollout) -> None:
    bare, cached = attrs.evolve(rollout, velocities=None), Jagg(middle="cached")
    found = gradient_of(cached, flow, bare)
    assert relative(found, gradient_of(Jagg(), flow, rollout)) < 1e-10
    assert cached.measured()["recomputed"] == 1


def test_a_surrogate_that_is_only_planned_is_not_counted(flow, rollout) -> None:
    estimator = Jagg(middle="cached")
    build(estimator, flow, at_version(rollout, 1))
    assert estimator.measured() == {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"window": 0}, "at least 1"),
        ({"routed": 1.2}, '0 to 1 or "auto"'),
        ({"routed": "most"}, "routed"),
        ({"nodes": [0, 4]}, "nodes"),
        ({"nodes": [3, 0]}, "increase"),
        ({"nodes": [0, 1, 2], "window": 2}, "nodes"),
        ({"nodes": []}, "nodes"),
        ({"interpolate": "none", "basis": "calibrated"}, "interpolate"),
        ({"interpolate": "sum", "basis": "nearest"}, "interpolate"),
        ({"calibrate_every": 5}, "calibrate_every"),
        ({"threshold": 0.5}, "threshold"),
        ({"threshold": 0.5, "basis": "calibrated"}, "threshold"),
        ({"routed": "auto", "threshold": 1.5}, "-1 to 1"),
        ({"W": 4}, "unknown key"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(table, message) -> None:
    plugin, problems = structure(Jagg, table, "[estimator]")
    assert plugin is None
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"routed": "auto", "threshold": 0.5, "calibrate_every": 3, "window": 8, "nodes": [1, 6]},
        {"basis": "calibrated", "calibrate_every": 3, "nodes": [0, 1, -1]},
        {"interpolate": "sum", "routed": 1, "window": 1},
    ],
)
def test_settings_come_back_from_the_table_that_is_saved(table) -> None:
    plugin, problems = structure(Jagg, table, "[estimator]")
    assert problems == []
    saved = unstructure(plugin)
    again, problems = structure(Jagg, saved, "[estimator]")
    assert problems == []
    assert unstructure(again) == saved
    assert set(saved) == {
        "window", "routed", "interpolate", "middle", "nodes", "basis", "calibrate_every", "threshold",
    }  # fmt: skip


def test_no_warning_is_given_outside_a_run(flow, rollout) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient_of(Jagg(window=2), flow, rollout)
