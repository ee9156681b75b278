"""`routed = "auto"`: cosines against gradients taken by hand, and what becomes of them."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from jagg_toys import (
    Silent,
    at_version,
    build,
    cosine,
    exact_gradient,
    gradient_of,
    toy_rollout,
    update,
)

from headwater.engine import MODES
from headwater.testing.toy_flow import ToyFlow
from headwater_jagg import Jagg

W = 5


@pytest.fixture(scope="module")
def flow() -> ToyFlow:
    return ToyFlow()


@pytest.fixture(scope="module")
def rollout(flow):
    """Groups 0-4 and 5-9, and a group of one."""
    return toy_rollout(flow, steps=11)


@pytest.mark.parametrize("basis", ["linear", "nearest", "calibrated"])
@pytest.mark.parametrize("mode", MODES)
def test_auto_measures_the_cosine_of_each_group_by_the_basis_in_force(
    flow, rollout, mode, basis
) -> None:
    estimator = Jagg(window=W, routed="auto", basis=basis)
    update(estimator, flow, rollout, mode=mode)
    found = estimator.measured()
    assert found["routed_groups"] == 0
    in_force = Jagg(window=W, routed=1.0, basis="linear" if basis == "calibrated" else basis)
    for k, first in enumerate((0, 5)):
        part = toy_rollout(flow, steps=11, trained=tuple(range(first, first + 5)))
        jagg, exact = gradient_of(in_force, flow, part), exact_gradient(flow, part)
        assert found[f"cosine_group_{k}"] == pytest.approx(cosine(jagg, exact), rel=1e-10)
        assert found[f"norm_ratio_group_{k}"] == pytest.approx(
            float(jagg.norm() / exact.norm()), rel=1e-10
        )
    assert "cosine_group_2" not in found, "a group of one is exact"


def test_auto_routes_the_groups_above_the_threshold_from_the_next_update_on(flow, rollout) -> None:
    first = Jagg(window=W, routed="auto")
    update(first, flow, rollout)
    found = first.measured()
    low, high = sorted((found["cosine_group_0"], found["cosine_group_1"]))
    better = 0 if found["cosine_group_0"] == high else 1
    assert high - low > 1e-3, "the toy must tell them apart"
    estimator = Jagg(window=W, routed="auto", threshold=(low + high) / 2)
    before, _ = update(estimator, flow, rollout)
    assert [len(g.steps) for g in before.groups] == [1] * 11
    after, _ = update(estimator, flow, at_version(rollout, 1))
    grouped = [g for g in after.groups if len(g.steps) > 1]
    assert [g.steps for g in grouped] == [tuple(range(5 * better, 5 * better + 5))]
    assert estimator.measured()["routed_groups"] == 1
    assert [g.steps[0] for g in after.groups] == sorted(g.steps[0] for g in after.groups)
    assert all(a.steps[-1] < b.steps[0] for a, b in pairwise(after.groups))


def test_auto_measures_a_routed_group_as_it_measures_an_exact_one(flow, rollout) -> None:
    """One goes through the engine as a group, the other step by step."""
    estimator = Jagg(window=W, routed="auto", threshold=-1.0, calibrate_every=1)
    update(estimator, flow, rollout)
    exact = estimator.measured()
    surrogate, _ = update(estimator, flow, at_version(rollout, 1))
    assert [len(g.steps) for g in surrogate.groups] == [5, 5, 1]
    routed = estimator.measured()
    for key in ("cosine_group_0", "norm_ratio_group_1"):
        assert routed[key] == pytest.approx(exact[key], rel=1e-12)


def test_a_group_without_upstream_keeps_its_route_and_reports_no_cosine(flow, rollout) -> None:
    estimator = Jagg(window=W, routed="auto", threshold=-1.0, calibrate_every=1)
    update(estimator, flow, rollout)
    estimator.measured()
    update(estimator, flow, at_version(rollout, 1), algorithm=Silent(range(11)))
    assert estimator.measured() == {"routed_groups": 2.0}
    later = build(estimator, flow, at_version(rollout, 2))
    assert [len(g.steps) for g in later.groups] == [5, 5, 1]


def test_a_state_goes_through_json_bit_for_bit(flow, rollout) -> None:
    """Taken after a skipped update too: its results must not come into force early."""
    settings = {"window": W, "basis": "calibrated", "routed": "auto", "threshold": 0.0}
    straight, resumed = Jagg(**settings), Jagg(**settings)
    update(straight, flow, rollout)
    resumed.restore(json.loads(json.dumps(straight.state())))
    for version in (0, 1):
        one = build(straight, flow, at_version(rollout, version), seed=5)
        two = build(resumed, flow, at_version(rollout, version), seed=5)
        assert [g.steps for g in one.groups] == [g.steps for g in two.groups]
        assert all(
            torch.equal(a.basis, b.basis) for a, b in zip(one.groups, two.groups, strict=True)
        )
        assert one.measurements == two.measurements == (0, 0)
