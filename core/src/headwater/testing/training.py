"""Whole runs with a plugin: what observers, interruptions and repeats may not change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from headwater.testing.contract import PluginContract
from headwater.testing.runs import PROMPTS, weights_after, write_run_file


class TrainingContract(PluginContract):
    """Checks of a plugin in a run of two optimizer steps, the others being toys."""

    run_prompts: ClassVar[tuple[str, ...]] = PROMPTS
    """Prompts of the runs."""
    run_tables: ClassVar[dict[str, Any]] = {}
    """Tables that the run file needs beside the plugin's own, `{"rollout": {"steps": 9}}`."""

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """The run file's tables with the plugin in its place."""
        return {self.kind: own}

    def run_file(self, plugin: Any, table: dict[str, Any], folder: Path, **output: Any) -> Path:
        """Write a run file for it."""
        tables = {**self.use(plugin, {"use": self.name, **table}), **self.run_tables}
        return write_run_file(folder, {**tables, "output": output}, self.run_prompts)

    def test_observers_change_no_weight(
        self, plugin: Any, headwater_table: dict[str, Any], headwater_toys: None, tmp_path: Path
    ) -> None:
        """With an observer that writes and one that fails, a run gives the bits it gives alone."""
        alone = self.run_file(plugin, headwater_table, tmp_path / "alone")
        trackers = ["toy-recorder", "toy-raiser"]
        told = self.run_file(plugin, headwater_table, tmp_path / "told", trackers=trackers)
        expected = weights_after(alone, tmp_path / "one")
        found = weights_after(told, tmp_path / "two")
        assert (tmp_path / "two/recorded.txt").exists(), "no observer was told of the run"
        assert different(found, expected) == "", (
            f"{different(found, expected)} differs between two runs of one run file, one of them "
            f"with observers: it depends on a clock, a global generator or an earlier run"
        )

    def test_a_resumed_run_equals_a_straight_one(
        self, plugin: Any, headwater_table: dict[str, Any], headwater_toys: None, tmp_path: Path
    ) -> None:
        """1 + 1 optimizer steps give the bits of 2: `state` and `restore` miss nothing."""
        from headwater import checkpoints

        path = self.run_file(plugin, headwater_table, tmp_path / "file")
        expected = weights_after(path, tmp_path / "run")
        last = checkpoints.newest(tmp_path / "run")
        shutil.rmtree(last)
        (tmp_path / "run/summary.json").unlink()
        found = weights_after(path, tmp_path / "run", resume=True)
        assert checkpoints.newest(tmp_path / "run").name == last.name
        assert different(found, expected) == "", (
            f"{different(found, expected)} differs after a resumed run: what its second step needs "
            f"of the first belongs into state() and restore(state)"
        )


def different(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Name of a tensor that is not the same bits in both; empty if all are."""
    import torch

    if one.keys() != other.keys():
        return ", ".join(sorted(one.keys() ^ other.keys()))
    return next((name for name in one if not torch.equal(one[name], other[name])), "")
