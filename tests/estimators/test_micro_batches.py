"""A micro-batch is a matter of memory: eight samples in parts of any size give one update.

Tolerance 1e-12 relative in float64: the same sums in another order.
"""

from __future__ import annotations

import pytest
from estimator_runs import update, update_in_parts

from headwater.testing.toy_flow import (
    gradient_vector,
    make_batch,
    relative,
    roll_out,
    zero_gradients,
)
from headwater_classics import Bptt, DraftK, DraftLV, DRTune, ReFL
from headwater_flowbp import Bridge, FreeSurrogate, Lagrange, Sparse
from headwater_flowbp.free import Active
from headwater_leapalign import LeapAlign

B, N = 8, 8

ESTIMATORS = {
    "bptt": Bptt(),
    "draft-k": DraftK(k=3),
    "draft-lv": DraftLV(n=2),
    "draft-lv, no copies": DraftLV(n=0),
    "refl": ReFL(),
    "refl on the sample": ReFL(endpoint="sample"),
    "drtune": DRTune(),
    "drtune on the sample": DRTune(endpoint="sample"),
    "leapalign": LeapAlign(),
    "leapalign, three leaps": LeapAlign(leaps=3, tau=1e-3),
    "flowbp-sparse": Sparse(),
    "flowbp-bridge": Bridge(coupling=0.5),
    "flowbp-lagrange": Lagrange(tau=1e-3),
    "surrogate": FreeSurrogate(
        active=Active(place="supports", count=4), weights="hat", split="uniform", tau=0.05
    ),
}


@pytest.fixture(scope="module")
def batch():
    return make_batch(B, N)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_micro_batches_of_any_size_give_the_same_update(flow, batch, name, record_property) -> None:
    estimator = ESTIMATORS[name]
    for seed in range(2):
        zero_gradients(flow)
        update(estimator, flow, roll_out(flow, batch), seed)
        expected = gradient_vector(flow)
        for size in (8, 4, 2, 1):
            zero_gradients(flow)
            update_in_parts(estimator, flow, batch, seed, size)
            error = relative(gradient_vector(flow), expected)
            record_property("relative_error", error)
            assert error < 1e-12, f"micro-batches of {size}"


def test_another_seed_gives_another_update_where_steps_are_drawn(flow, batch) -> None:
    """Else the test above would hold for an estimator that ignores its generator."""
    rollout = roll_out(flow, batch)
    for name in ("refl", "drtune", "leapalign", "flowbp-sparse", "flowbp-bridge", "surrogate"):
        gradients = []
        for seed in range(4):
            zero_gradients(flow)
            update(ESTIMATORS[name], flow, rollout, seed)
            gradients.append(gradient_vector(flow))
        assert any(relative(gradient, gradients[0]) > 1e-3 for gradient in gradients[1:]), name


def test_the_planned_count_is_what_the_loss_is_divided_by(flow, batch) -> None:
    rollout = roll_out(flow, batch)
    for name in ("leapalign", "draft-lv"):
        zero_gradients(flow)
        update(ESTIMATORS[name], flow, rollout, 0, samples=3 * B)
        third = gradient_vector(flow)
        zero_gradients(flow)
        update(ESTIMATORS[name], flow, rollout, 0)
        assert relative(third, gradient_vector(flow) / 3) < 1e-12
