"""MLflow. By default its database lies in the run folder; a server is one setting away."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from headwater.composition import resolved
from headwater_trackers.tracker import Record, Tracker, flat, numbers, plugins_of

if TYPE_CHECKING:
    from headwater.composition import Run

LONGEST = 6000
"""Letters of a parameter's value that MLflow keeps."""
DEFAULTS = {
    # No word to the makers, and a server that is gone costs seconds, not minutes, each time.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # The terminal is the run's own.
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


@attrs.define(eq=False)
class MLflow(Tracker):
    """Records into the run folder's `mlflow/`, or to `uri`."""

    library: ClassVar[str] = "mlflow"

    uri: str = ""
    """`http://HOST:PORT`, `sqlite:///FILE`, or any other tracking URI; empty for the run folder."""
    experiment: str = "headwater"
    """Experiment the run belongs to."""
    name: str = ""
    """Name of the run; empty for that of its folder."""
    tags: Mapping[str, str] = attrs.field(factory=dict)
    """Beside `headwater.backbone`, `.algorithm`, `.estimator` and `.dynamics`."""

    _client: Any = attrs.field(init=False, default=None)
    _id: str = attrs.field(init=False, default="")

    def _open(self, run: Run, folder: Path, known: str) -> str:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        store = folder / "mlflow"
        if not self.uri:
            store.mkdir(exist_ok=True)
        self._client = MlflowClient(
            self.uri or f"sqlite:///{store / 'mlflow.db'}",
            # Models are not registered; without a database of its own nothing is made for them.
            registry_uri=None if self.uri else str(store / "registry"),
        )
        self._id = known or self._new_run(run, folder, store)
        if known:
            self._client.update_run(known, status="RUNNING")
        self._client.log_artifact(self._id, str(folder / "run.toml"))
        return self._id

    def _new_run(self, run: Run, folder: Path, store: Path) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(self.experiment)
        where = None if self.uri else (store / "artifacts").as_uri()
        experiment = (
            found.experiment_id
            if found is not None
            else self._client.create_experiment(self.experiment, artifact_location=where)
        )
        plugins = {f"headwater.{kind}": name for kind, name in plugins_of(run).items()}
        made = self._client.create_run(
            experiment, run_name=self.name or folder.name, tags={**plugins, **self.tags}
        )
        values = [Param(k, str(v)[:LONGEST]) for k, v in flat(resolved(run), ".")]
        for start in range(0, len(values), 100):  # as many as a server takes at once
            self._client.log_batch(made.info.run_id, params=values[start : start + 100])
        return str(made.info.run_id)

    def _record(self, record: Record, row: int) -> None:
        self._log(record.metrics, record.step, record.when)
        if record.picture is not None:
            self._client.log_artifact(self._id, str(record.picture), "samples")

    def _log(self, metrics: Mapping[str, float], step: int, when: float) -> None:
        """The same metrics of the same moment may be sent twice: MLflow keeps them once."""
        from mlflow.entities import Metric

        values = [Metric(k, float(v), int(when * 1000), step) for k, v in metrics.items()]
        for start in range(0, len(values), 1000):  # as many as a server takes at once
            self._client.log_batch(self._id, metrics=values[start : start + 1000])

    def _conclude(self, step: int, summary: Mapping[str, Any]) -> None:
        self._log(numbers(summary), step, time.time())
        self._client.log_artifact(self._id, str(self._folder / "summary.json"))
        pairs = self._folder / "samples" / "before_after.png"
        if pairs.exists():
            self._client.log_artifact(self._id, str(pairs), "samples")

    def _close(self, reason: str) -> None:
        status = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[reason]
        self._client.set_terminated(self._id, status)
