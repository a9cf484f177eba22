"""Feature columns, which turn the fields of a batch into inputs of the network.

features.fit_columns(columns, batches, directory)        # one pass over the training split
inputs = features.encode_columns(columns, batch, features.load_statistics(directory))
features.Numeric.names = ["age", "hours"]                # in a gin file: one object for numbers

A column object can serve several fields with equal settings, so ten lines of gin describe a table.
Columns are fitted to the training split once, before the first step. The folder
`<model_dir>/statistics` holds the statistics of columns. An export holds vocabularies as assets.
"""

from mtl.features.bucketized import Bucketized, Crossed
from mtl.features.categorical import Categorical, Hashed, Identity
from mtl.features.encoding import check_columns, encode_columns, fit_columns, missing_statistics
from mtl.features.growing import Growing
from mtl.features.growth import grow_tables, list_growing_tables
from mtl.features.history import History
from mtl.features.image import Image
from mtl.features.number_vectors import AutoDis, Periodic, PiecewiseLinear
from mtl.features.numeric import Numeric
from mtl.features.statistics import (
    Statistics,
    adopt_statistics,
    list_differing,
    list_fitted,
    load_statistics,
    seal_statistics,
)
from mtl.features.text import Text
from mtl.features.time_parts import DaysSince, TimeParts
from mtl.features.unified import Unified
from mtl.features.weighted import Weighted

__all__ = [
    "AutoDis",
    "Bucketized",
    "Categorical",
    "Crossed",
    "DaysSince",
    "Growing",
    "Hashed",
    "History",
    "Identity",
    "Image",
    "Numeric",
    "Periodic",
    "PiecewiseLinear",
    "Statistics",
    "Text",
    "TimeParts",
    "Unified",
    "Weighted",
    "adopt_statistics",
    "check_columns",
    "encode_columns",
    "fit_columns",
    "grow_tables",
    "list_growing_tables",
    "list_differing",
    "list_fitted",
    "load_statistics",
    "missing_statistics",
    "seal_statistics",
]
