"""The files of a run: checkpoints, the best of them, the state of the input, one lock.

from mtl import checkpoints
checkpoints.Best.metric = "digit/accuracy"
checkpoints.Best.patience = 5
"""

from mtl.checkpoints.best import Best, BestKeeper

__all__ = ["Best", "BestKeeper"]
