"""What each tracker has on the disk, read without the plugin."""

import json
import os
import sqlite3
import struct
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 32768
"""Bytes of a block of a `.wandb` file, which is a LevelDB log after a header of seven bytes."""


@dataclass
class Found:
    """One or several runs of a tracker; several are a defect."""

    runs: set = field(default_factory=set)
    rows: list = field(default_factory=list)
    """(step, metrics), in the order of recording."""
    settings: dict = field(default_factory=dict)
    """Values of the resolved run file by dotted name."""
    pictures: list = field(default_factory=list)
    """Steps of sample grids."""
    summary: dict = field(default_factory=dict)
    status: str = ""


def nested(value, path=""):
    """Numbers and texts of nested tables, by dotted path."""
    if not isinstance(value, dict):
        return {path: value}
    out = {}
    for key, inner in value.items():
        out |= nested(inner, f"{path}.{key}" if path else key)
    return out


def protocol_records(path):
    """The records of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0:
            return
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def values_of(items):
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


def wandb(folder):
    """All offline parts of a run folder's wandb/, in order, as `wandb sync` sends them."""
    found, places = Found(), []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in protocol_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                found.runs.add(record.run.run_id)
            elif kind == "config":
                found.settings |= nested(values_of(record.config.update))
            elif kind == "history":
                row = values_of(record.history.item)
                if "samples._type" in row:
                    found.pictures.append(row["step"])
                    assert list(folder.glob(f"wandb/*/files/{row['samples.path']}"))
                places.append(row["_step"])
                plain = {k: v for k, v in row.items() if not k.startswith(("_", "samples."))}
                found.rows.append((plain.pop("step"), plain))
            elif kind == "summary":
                found.summary |= nested(values_of(record.summary.update))
            elif kind == "exit":
                found.status = str(record.exit.exit_code)
    assert places == list(range(len(places))), "rows with one number would replace each other"
    return found


def mlflow(folder):
    """The run folder's own database."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'mlflow/mlflow.db'}"
    client = MlflowClient(uri, registry_uri=str(folder / "mlflow/registry"))
    found, rows = Found(), []
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    for run in client.search_runs([experiment.experiment_id]):
        name = run.info.run_id
        found.runs.add(name)
        found.settings, found.status = dict(run.data.params), run.info.status
        for key in run.data.metrics:
            points = client.get_metric_history(name, key)
            if key.startswith("summary/"):
                found.summary[key.removeprefix("summary/").replace("/", ".")] = points[-1].value
                continue
            rows += [
                (p.step, key.startswith(("evaluation/", "change/")), key, p.value) for p in points
            ]
        files = client.list_artifacts(name, "samples")
        steps = [Path(f.path).stem for f in files if "step-" in f.path]
        found.pictures = sorted(int(s.removeprefix("step-")) for s in steps)
        assert {"run.toml", "summary.json"} >= {f.path for f in client.list_artifacts(name)} - {
            "samples"
        }
    for step, evaluation in sorted({row[:2] for row in rows}, key=lambda r: (r[0], r[1])):
        own = [row[2:] for row in rows if row[:2] == (step, evaluation)]
        assert len(dict(own)) == len(own), f"a metric is twice at step {step}"
        found.rows.append((step, dict(own)))
    return found


def trackio(folder):
    """The database of the project, which the tests name as their folder."""
    found, path = Found(), Path(os.environ["TRACKIO_DIR"]) / f"{folder.parent.name}.db"
    if not path.exists():
        return found
    base = sqlite3.connect(path)
    found.runs = {run for (run,) in base.execute("SELECT DISTINCT run_id FROM metrics")}
    for (config,) in base.execute("SELECT config FROM configs"):
        found.settings = nested(json.loads(config))
    for step, text in base.execute("SELECT step, metrics FROM metrics ORDER BY id"):
        row = json.loads(text)
        if "samples" in row:
            found.pictures.append(step)
            del row["samples"]
        if any(key.startswith("summary/") for key in row):
            found.summary = {
                k.removeprefix("summary/").replace("/", "."): v for k, v in row.items()
            }
            continue
        found.rows.append((step, row))
    base.close()
    return found


READERS = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio}
