"""Makes an example request for a served model from a row that is stored in the export.

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
    """Return an example request with one row, as JSON for TensorFlow Serving's REST interface.

    The row comes from the first warm-up request of the signature `raw`, or of `serving_default` if
    there is no `raw`. Without warm-up requests, the row has zeros and empty texts.

    Args:
      model: a version of the model.

    Returns:
      The JSON object of the request.
    """
    name = models.RAW if models.RAW in model.signatures else models.DEFAULT
    signature = model.find_signature(name)
    (inputs, *_) = model.read_warm_up().get(name) or [_make_zeros(signature)]
    if signature.takes_examples:
        (example, *_) = next(iter(inputs.values())).tolist()
        return {"instances": [{tensors.B64: base64.b64encode(example).decode()}]}
    row = {key: _read_row(value) for key, value in sorted(inputs.items())}
    # If a signature has only one input, a row of a request is a value without the input's name.
    if len(signature.inputs) == 1:
        (row,) = row.values()
    return {"signature_name": name, "instances": [row]}


def _read_row(value: np.ndarray) -> Any:
    (text,) = tensors.write_rows(value[:1], is_bytes=False)
    return json.loads(text)


def _make_zeros(signature: models.Signature) -> dict[str, np.ndarray]:
    arrays = {}
    for name, tensor in signature.inputs.items():
        # The first axis counts rows, so it has length 1. Other axes without a fixed length also get
        # the length 1.
        shape = [1, *(axis or 1 for axis in (tensor.shape or (1,))[1:])]
        empty = np.full(shape, b"", object)
        is_text = tensor.dtype == tf.string
        arrays[name] = empty if is_text else np.zeros(shape, tensor.dtype.as_numpy_dtype)
    return arrays
