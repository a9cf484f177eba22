"""The model: the parts of a training step, and the graph that joins them."""

from mtl.model.multi_task_model import MultiTaskModel

__all__ = ["MultiTaskModel"]
