"""Computes predictions for the rows of files, by a model in this process or on a server.

reader = scoring.Reader(spec=spec, batch_size=512, keep=["id"])
model = scoring.SavedModel("models/income")     # or scoring.connect_server("localhost:8500", ...)
shards = scoring.plan_shards(reader.find(["in/*.csv"]), "out", format_name="jsonl")
scoring.score_shards(shards, reader, model)

Most work happens outside of Python's global interpreter lock, column by column: TensorFlow parses
and predicts, and Arrow writes text or records. Python reads a batch row by row only if the batch
has a mistake, so that the error can name the wrong row.
"""

from mtl.tools.scoring.access import Access
from mtl.tools.scoring.blocks import find_maker
from mtl.tools.scoring.labelled import open_files
from mtl.tools.scoring.local import Checkpoint, SavedModel, find_newest
from mtl.tools.scoring.protection import Protection
from mtl.tools.scoring.protocol import Call
from mtl.tools.scoring.readers import Reader
from mtl.tools.scoring.remote import connect_server
from mtl.tools.scoring.shards import plan_shards, score_shards
from mtl.tools.scoring.writers import FORMATS, open_writer

__all__ = [
    "FORMATS",
    "Access",
    "Call",
    "Checkpoint",
    "Protection",
    "Reader",
    "SavedModel",
    "connect_server",
    "find_maker",
    "find_newest",
    "open_files",
    "plan_shards",
    "score_shards",
    "open_writer",
]
