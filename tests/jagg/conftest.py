"""One thread, and the toys importable whatever pytest's import mode."""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engine")]
torch.set_num_threads(1)
