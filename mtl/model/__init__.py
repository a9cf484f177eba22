"""The model: its parts, and the graphs of training, evaluation and prediction."""

from mtl.model.multi_task_model import MultiTaskModel

__all__ = ["MultiTaskModel"]
