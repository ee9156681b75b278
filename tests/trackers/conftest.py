"""Runs of toys with real trackers; each tracker's own folders lie in the test's."""

import warnings

import pytest

from headwater.composition import compose
from headwater.loop import train
from headwater.progress import Quiet
from headwater.testing.runs import write_run_file


@pytest.fixture(scope="session")
def trackio_folder(tmp_path_factory):
    """One for all tests: Trackio reads TRACKIO_DIR once, when it is imported."""
    return tmp_path_factory.mktemp("trackio")


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch, trackio_folder):
    """Nothing of the user's is read or written, and no account is found."""
    monkeypatch.setenv("TRACKIO_DIR", str(trackio_folder))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


class Shown(Quiet):
    """Keeps the notes, and calls `at[step]` after a step."""

    def __init__(self, at=None):
        self.at, self.notes = at or {}, []

    def after_step(self, step, metrics, skipped):
        self.at.get(step, lambda: None)()

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def run_file(tmp_path, headwater_toys):
    """run_file(*trackers, **settings of the first): four steps, an evaluation every second, checkpoints too."""

    def write(*trackers, **settings):
        tables = {
            "steps": 4,
            "evaluation": {"every": 2, "count": 2},
            "output": {"trackers": ["jsonl", *trackers], "checkpoint_every": 2},
        }
        if "trackio" in trackers:
            settings.setdefault("project", tmp_path.name)
        if settings:
            tables["observer"] = {trackers[0]: settings}
        return write_run_file(tmp_path / "file", tables)

    return write


@pytest.fixture
def trained():
    """trained(path, out, at, resume): train, and give what the run's display was told."""

    def go(path, out, at=None, *, resume=False):
        shown = Shown(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's own
            train(compose(path), out, shown, resume=resume)
        return shown

    return go
