"""Reports a run to MLflow, to Weights & Biases, or to your own tracker.

from mtl import tracking
experiment.Experiment.trackers = [@tracking.MLflow(), @tracking.WandB()]
tracking.MLflow.tracking_uri = "sqlite:///mlflow.db"
"""

from mtl.tracking.mlflow import MLflow
from mtl.tracking.wandb import WandB

__all__ = ["MLflow", "WandB"]
