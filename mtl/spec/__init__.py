"""Describes the fields of an example to the code that reads data, trains and serves.

from mtl import spec
spec.Spec.features = {"age": "float32", "tags": ("string", (None,)), "image": ("uint8", (8, 8, 1)),
                      "categories_of_clicked": ("string", (None, None)),     # a list of lists
                      "topics": ("string", (None,)), "topics/weights": ("float32", (None,))}
spec.Spec.labels = {"income": "string"}
spec.Spec.defaults = {"age": 40.0}                       # for absent values of a field
spec.Spec.type_defaults = {"float32": "nan", "int64": 0}  # for all other features of a type
"""

from mtl.spec.fields import (
    MISSING,
    NO_ID,
    AbsentError,
    Field,
    Gaps,
    Spec,
    counts_name,
    find_weighted,
    require_counts,
    weights_name,
)

__all__ = [
    "MISSING",
    "NO_ID",
    "AbsentError",
    "Field",
    "Gaps",
    "Spec",
    "counts_name",
    "find_weighted",
    "require_counts",
    "weights_name",
]
