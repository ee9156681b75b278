"""One thread, and the helpers importable whatever pytest's import mode."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests that leave it as it is."""
    from served import serving

    with serving(tmp_path_factory.mktemp("served"), "--body-mib", "1", "--pixels", "20000") as made:
        yield made
