"""Checks of plugins with weights: backbones and rewards."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

from headwater.testing.runs import PROMPTS
from headwater.testing.training import TrainingContract

SLACK = 2**16
"""Bytes of tensors that a second load may leave behind: small constants of libraries."""


class LoadedContract(TrainingContract):
    """A plugin whose `load` is called before it is used."""

    device: ClassVar[str] = "cpu"
    """Where its weights are loaded."""
    guidance: ClassVar[float] = 1.0
    """Guidance scale it is loaded with."""
    prompts: ClassVar[tuple[Any, ...]] = PROMPTS
    """Texts, or `headwater.types.Prompt` records."""

    def prompt_records(self) -> list[Any]:
        """The prompts as records."""
        from headwater.types import Prompt

        return [Prompt(p) if isinstance(p, str) else p for p in self.prompts]

    def load_fresh(self, table: dict[str, Any], device: str = "") -> Any:
        """A new plugin, loaded; one without `load` needs none."""
        from headwater.discovery import load
        from headwater.protocols import LoadContext

        plugin = load(self.kind, self.name, table)
        context = LoadContext(
            device or self.device,
            guidance=self.guidance,
            seed=3,
            prompts=tuple(self.prompt_records()),
        )
        if hasattr(plugin, "load"):
            plugin.load(context)
        return plugin

    def test_loading_again_leaves_nothing_behind(
        self, headwater_loaded: Any, headwater_table: dict[str, Any]
    ) -> None:
        """A second plugin that is dropped frees what it loaded: no cache of the module grows."""
        gc.freeze()  # what there is already is neither collected nor listed, and costs no time
        try:
            self.load_fresh(headwater_table)
            left = _tensor_bytes()
        finally:
            gc.unfreeze()
        assert left <= SLACK, (
            f"a plugin that was loaded and dropped leaves {left / 2**20:.2f} MiB of tensors; keep "
            f"weights in the plugin and not in its module or class"
        )

    def test_notes_and_measurements_are_plain(self, headwater_loaded: Any) -> None:
        """`notes()` gives lines of text, `measured()` numbers by name, where it has them."""
        if hasattr(headwater_loaded, "notes"):
            assert all(isinstance(line, str) for line in headwater_loaded.notes())
        if hasattr(headwater_loaded, "measured"):
            found = dict(headwater_loaded.measured())
            assert all(isinstance(v, (int, float)) for v in found.values()), f"measured: {found}"


def _tensor_bytes() -> int:
    """Bytes of the tensors that came to be since the last freeze, each storage once."""
    import torch

    gc.collect()
    sizes = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type != "meta":
            storage = thing.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
