"""One thread, and the toys and joint graphs importable whatever pytest's import mode."""

import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engine")]
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def flow():
    """The guided toy; its weights are never changed, only its gradients."""
    from headwater.testing.toy_flow import ToyFlow

    return ToyFlow()


@pytest.fixture(scope="module")
def rollout(flow):
    """Four samples, eleven steps."""
    from headwater.testing.toy_flow import make_batch, roll_out

    return roll_out(flow, make_batch(4, 11))


@pytest.fixture(scope="module")
def compare(flow, rollout):
    """Run both sides; `graph` gives endpoint and weights from the cache and the groups drawn."""
    from estimator_runs import joint_backward, update
    from joint_graphs import Cache

    from headwater.testing.toy_flow import gradient_vector, relative, zero_gradients

    def run(estimator, seed, graph, record, mode="stream"):
        zero_gradients(flow)
        found = update(estimator, flow, rollout, seed, mode=mode)
        through_engine = gradient_vector(flow)
        groups = found.surrogate.groups
        assert groups[0].coupling == 0, "nothing reads the gradient before the first group"
        endpoint, weights = graph(Cache(flow, rollout), groups)
        zero_gradients(flow)
        joint_backward(flow, rollout.batch, [(endpoint, weights, range(len(endpoint)))])
        error = relative(through_engine, gradient_vector(flow))
        record("relative_error", error)
        assert error < 1e-10
        assert relative(found.surrogate.endpoint.detach(), endpoint.detach()) < 1e-12
        return groups

    return run
