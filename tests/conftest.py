"""One thread: the tests' tensors are small, and several test processes share the machine."""

import torch

torch.set_num_threads(1)

pytest_plugins = ["headwater.testing.fixtures"]
