"""Every installed observer passes its contract."""

from importlib.util import find_spec

import pytest

from headwater.testing import ObserverContract


def needs(library):
    """Skips a class where a tracker's own library is not installed."""
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


class TestJsonLines(ObserverContract):
    name = "jsonl"


class TestTensorBoard(ObserverContract):
    name = "tensorboard"


class TestMarkdownLog(ObserverContract):
    name = "markdown-log"
    settings = {"title": "A contract"}


@needs("wandb")
class TestWandb(ObserverContract):
    name = "wandb"
    settings = {"project": "contract", "tags": ["one", "two"]}

    def test_no_thread_outlives_the_run(self):
        """Its service and the thread that talks to it end with the process, by its design."""


@needs("mlflow")
class TestMLflow(ObserverContract):
    name = "mlflow"
    settings = {"experiment": "contract", "tags": {"team": "images"}}


@needs("trackio")
class TestTrackio(ObserverContract):
    name = "trackio"
    settings = {"project": "contract"}

    @pytest.fixture(autouse=True)
    def own_folder(self, tmp_path, monkeypatch):
        """Its database is the user's, not the run's."""
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
