"""An example request of a served model, from a real row that its export holds.

examples.make_rest(model)          # {"signature_name": "raw", "instances": [{"age": 39.0, ...}]}
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from mtl.deferred import tf
from mtl.tools.serve import models, tensors


def make_rest(model: models.Model) -> dict[str, Any]:
    """Return a request of TensorFlow Serving's REST with one row.

    The row is the first warm-up request of `raw`, or of `serving_default` without it. An export
    without warm-up requests gets zeros and empty texts.
    """
    name = models.RAW if models.RAW in model.signatures else models.DEFAULT
    signature = model.find_signature(name)
    (first, *_) = model.read_warm_up().get(name) or [_make_zeros(signature)]
    if signature.takes_examples:
        (example, *_) = next(iter(first.values())).tolist()
        return {"instances": [{tensors.B64: base64.b64encode(example).decode()}]}
    row = {key: _read_row(value) for key, value in sorted(first.items())}
    # The row format has values without a name if a signature has one input.
    if len(signature.inputs) == 1:
        (row,) = row.values()
    return {"signature_name": name, "instances": [row]}


def _read_row(value: np.ndarray) -> Any:
    (text,) = tensors.write_rows(value[:1], is_bytes=False)
    return json.loads(text)


def _make_zeros(signature: models.Signature) -> dict[str, np.ndarray]:
    arrays = {}
    for name, tensor in signature.inputs.items():
        # One row: the first axis counts rows, and an axis of any length gets one value.
        shape = [1, *(axis or 1 for axis in (tensor.shape or (1,))[1:])]
        empty = np.full(shape, b"", object)
        is_text = tensor.dtype == tf.string
        arrays[name] = empty if is_text else np.zeros(shape, tensor.dtype.as_numpy_dtype)
    return arrays
