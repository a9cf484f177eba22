"""Reports a run to MLflow, to Weights & Biases, or to your own tracker.

from mtl.tools import tracking
experiment.Experiment.trackers = [@tracking.MLflow(), @tracking.WandB()]
tracking.MLflow.tracking_uri = "sqlite:///mlflow.db"
"""

from mtl.tools.tracking.mlflow import MLflow
from mtl.tools.tracking.reporting import Reporting
from mtl.tools.tracking.wandb import WandB

__all__ = ["MLflow", "Reporting", "WandB"]
