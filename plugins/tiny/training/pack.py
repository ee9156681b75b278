"""Write the shipped weights: float16 safetensors of the flow model and of the scorer."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from evaluate import load_checkpoint
from safetensors.torch import save_file

FOLDER = Path(__file__).parent.parent / "src" / "headwater_tiny" / "weights"


def main() -> None:
    """Pack what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--flow", help="name of the flow checkpoint")
    parser.add_argument("--preference", help="name of the preference checkpoint")
    options = parser.parse_args()
    if options.flow:
        write("flow.safetensors", load_checkpoint(options.work, options.flow).state_dict())
    if options.preference:
        write("preference.safetensors", torch.load(options.work / options.preference))


def write(name: str, state: dict) -> None:
    """Save tensors in float16."""
    FOLDER.mkdir(exist_ok=True)
    save_file({key: value.half().contiguous() for key, value in state.items()}, FOLDER / name)
    print(name, (FOLDER / name).stat().st_size)


if __name__ == "__main__":
    main()
