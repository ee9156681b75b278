"""Weights & Biases, MLflow and Trackio as observers of a run; none needs the network by default."""

from headwater_trackers.mlflow_tracker import MLflow
from headwater_trackers.trackio_tracker import Trackio
from headwater_trackers.wandb_tracker import Wandb

__all__ = ["MLflow", "Trackio", "Wandb"]
