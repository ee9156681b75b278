"""One thread, and the toys importable whatever pytest's import mode."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def flow():
    """The guided toy; its weights are never changed, only its gradients."""
    from headwater.testing.toy_flow import ToyFlow

    return ToyFlow()


@pytest.fixture(scope="module")
def rollout(flow):
    """Three samples, seven steps."""
    from headwater.testing.toy_flow import make_batch, roll_out

    return roll_out(flow, make_batch(3, 7))
