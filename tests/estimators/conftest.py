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
    from toy_flow import ToyFlow

    return ToyFlow()
