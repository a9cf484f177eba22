"""Exports models for TensorFlow Serving, with signatures, versions, checks and warm-up requests.

from mtl import serving
experiment.Experiment.serving = @serving.Serving()
serving.Serving.outputs = ["income/probability"]
"""

from mtl.serving.exporter import AddFiles, Exporter, Written, or_warn
from mtl.serving.metadata import add_metadata, read_metadata, spec_of
from mtl.serving.optimized import AsTrained, Optimized
from mtl.serving.rows import Rows, hold_rows, read_rows
from mtl.serving.settings import Serving
from mtl.serving.signatures import add_signatures

__all__ = [
    "AddFiles",
    "AsTrained",
    "Exporter",
    "Optimized",
    "Rows",
    "Serving",
    "Written",
    "add_metadata",
    "add_signatures",
    "hold_rows",
    "or_warn",
    "read_metadata",
    "read_rows",
    "spec_of",
]
