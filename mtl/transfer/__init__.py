"""Transfer: warm starts from saved weights, and functions that edit checkpoints.

experiment.Experiment.warm_start = @transfer.WarmStart()
transfer.WarmStart.source = "runs/pretrained"            # a model_dir, a checkpoint, a SavedModel
transfer.WarmStart.exclude = ["^head/"]
"""

from mtl.transfer.capacity import enlarge_tables, find_keys
from mtl.transfer.checkpoint import read_checkpoint, write_checkpoint
from mtl.transfer.warm_start import WarmStart, forget_warm_start

__all__ = [
    "WarmStart",
    "enlarge_tables",
    "find_keys",
    "forget_warm_start",
    "read_checkpoint",
    "write_checkpoint",
]
