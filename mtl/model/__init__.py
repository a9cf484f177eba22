"""The model: the parts of a training step, and how they are put together."""

from mtl.model.multi_task_model import MultiTaskModel

__all__ = ["MultiTaskModel"]
