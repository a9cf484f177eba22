"""Manages the files of a run: checkpoints, the best checkpoint, states of the input, the lock.

from mtl import checkpoints
checkpoints.Best.metric = "digit/accuracy"
checkpoints.Best.patience = 5
"""

from mtl.checkpoints.best import Best, BestKeeper

__all__ = ["Best", "BestKeeper"]
