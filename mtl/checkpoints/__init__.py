"""The files of a run: its checkpoints, the best checkpoint, the state of the input, its lock.

from mtl import checkpoints
checkpoints.Best.metric = "digit/accuracy"
checkpoints.Best.patience = 5
"""

from mtl.checkpoints.best import Best, BestKeeper

__all__ = ["Best", "BestKeeper"]
