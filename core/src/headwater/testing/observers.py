"""The contract of an observer."""

from __future__ import annotations

import socket
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headwater.testing.runs import weights_after
from headwater.testing.training import TrainingContract, different


class ObserverContract(TrainingContract):
    """What an observer owes: it is told of a run, and changes nothing in it."""

    kind: ClassVar[str] = "observer"

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """Its run: named under [output] trackers, its settings under [observer.NAME]."""
        settings = {key: value for key, value in own.items() if key != "use"}
        return {"observer": {self.name: settings}} if settings else {}

    def run_file(self, plugin: Any, table: dict[str, Any], folder: Path, **output: Any) -> Path:
        """A run that it is told of, beside the observers that are asked for."""
        output["trackers"] = list(dict.fromkeys([self.name, *output.get("trackers", ())]))
        return super().run_file(plugin, table, folder, **output)

    def test_it_changes_no_weight(
        self, plugin: Any, headwater_table: dict[str, Any], headwater_toys: None, tmp_path: Path
    ) -> None:
        """A run that it is told of has the bits of one that nobody is told of."""
        told = self.run_file(plugin, headwater_table, tmp_path / "told")
        alone = super().run_file(plugin, {}, tmp_path / "alone", trackers=[])
        found = weights_after(told, tmp_path / "one")
        expected = weights_after(alone, tmp_path / "two")
        assert different(found, expected) == "", (
            f"{different(found, expected)} differs: it draws from a global generator, or changes "
            f"the metrics or the run it is shown"
        )

    def test_it_works_without_a_network_and_fails_in_nothing(
        self,
        plugin: Any,
        headwater_table: dict[str, Any],
        headwater_toys: None,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """No connection beyond this machine is tried, and no hook of it raises."""
        import headwater

        tried: list[Any] = []
        connect = socket.socket.connect

        def refuse(self: socket.socket, address: Any) -> None:
            host = address[0] if isinstance(address, tuple) else "localhost"
            if host in ("localhost", "127.0.0.1", "::1"):
                connect(self, address)
                return
            tried.append(address)
            raise OSError("no network in this test")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        path = self.run_file(plugin, headwater_table, tmp_path / "file")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            headwater.run(path, out=tmp_path / "run")
        failed = [str(w.message) for w in said if "failed" in str(w.message)]
        assert not failed, f"{failed[0]}"
        assert not tried, f"it connects to {tried[0]}; work offline unless its settings ask for it"

    def test_it_writes_in_the_run_folder_alone(
        self,
        plugin: Any,
        headwater_table: dict[str, Any],
        headwater_toys: None,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The working directory and the run file's folder stay as they were."""
        work = tmp_path / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        path = self.run_file(plugin, headwater_table, tmp_path / "file")
        weights_after(path, tmp_path / "run")
        assert not list(work.iterdir()), (
            f"it writes {next(work.iterdir()).name} into the working directory; write into the "
            f"folder that `start` is given"
        )
        assert {p.name for p in path.parent.iterdir()} == {"run.toml", "prompts.txt"}

    def test_no_thread_outlives_the_run(
        self, plugin: Any, headwater_table: dict[str, Any], headwater_toys: None, tmp_path: Path
    ) -> None:
        """`finish` ends what `start` began."""
        path = self.run_file(plugin, headwater_table, tmp_path / "file")
        before = set(threading.enumerate())
        weights_after(path, tmp_path / "run")
        left = [t.name for t in set(threading.enumerate()) - before if t.is_alive()]
        assert not left, f"after the run its thread {left[0]} is running; end it in `finish`"
