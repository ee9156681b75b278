"""A small model of random weights in every form the rewards load: file, pickle and folder."""

import attrs
import pytest
import torch
from rewards_clip.clip_cases import random_checkpoint, save_tokenizer, tiny
from safetensors.torch import save_file

from headwater_rewards_clip.weights import clip_from_state


@attrs.frozen(eq=False)
class Small:
    """Where the forms of one small model lie."""

    pickle: str
    file: str
    folder: str
    tokenizer: str
    sizes: object
    state: dict

    @property
    def table(self):
        """The sizes as a run file states them."""
        return attrs.asdict(self.sizes)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    base = tmp_path_factory.mktemp("clip")
    sizes = tiny(vocabulary=save_tokenizer(base / "tokenizer"))
    state = random_checkpoint(sizes, 11)
    torch.save({"state_dict": state, "epoch": 3}, base / "small.pt")
    save_file(state, base / "small.safetensors")
    clip_from_state(dict(state), sizes).save_pretrained(base / "folder")
    save_tokenizer(base / "folder")
    names = ("small.pt", "small.safetensors", "folder", "tokenizer")
    return Small(*(str(base / name) for name in names), sizes=sizes, state=state)
