"""Writes the warm-up requests that a server runs before it serves a version to clients.

warm_up.write(path, "income", signature_defs, held_out)
# -> <path>/assets.extra/tf_serving_warmup_requests, a TFRecord of PredictionLog records

Exports do not need the package tensorflow-serving-api, because this module declares the protocol
buffer messages that it writes. Messages that are only copied are declared as bytes, which have the
same wire format.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from mtl.deferred import tf
from mtl.serving import inputs, rows, settings, signatures

FILE = "tf_serving_warmup_requests"
MOST = 1000
"""The largest number of warm-up requests that a server accepts."""

_log = logging.getLogger(__name__)

_STRING, _BYTES, _MESSAGE = 9, 12, 11
# {message: {field: (number, type)}}, with the numbers and names of tensorflow_serving/apis.
_MESSAGES: Mapping[str, Mapping[str, tuple[int, int | str]]] = {
    "ModelSpec": {"name": (1, _STRING), "signature_name": (3, _STRING)},
    "Entry": {"key": (1, _STRING), "value": (2, _BYTES)},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "Entry")},
    "ExampleList": {"examples": (1, _BYTES)},
    "Input": {"example_list": (1, "ExampleList")},
    "ExamplesRequest": {"model_spec": (1, "ModelSpec"), "input": (2, "Input")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "ExamplesLog": {"request": (1, "ExamplesRequest")},
    "PredictionLog": {
        "classify_log": (2, "ExamplesLog"),
        "regress_log": (3, "ExamplesLog"),
        "predict_log": (6, "PredictLog"),
    },
}
_REPEATED = {"inputs", "examples"}


def _build_message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="warm_up.proto", package="mtl", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            # In a FileDescriptorProto, label 1 means optional, and 3 repeated.
            added = message.field.add(name=field, number=number, label=1 + 2 * (field in _REPEATED))
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".mtl.{kind}"
            else:
                added.type = kind
    # Use a separate pool, because the default pool may contain the messages of TensorFlow Serving.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mtl.PredictionLog"))


PredictionLog = _build_message()
_RAW_LEAN = f"{settings.RAW}/{settings.LEAN}"
_OF_ALL_TASKS = (settings.DEFAULT, settings.LEAN, settings.RAW, _RAW_LEAN)


def write(
    directory: str, model_name: str, signature_defs: Mapping[str, Any], held_out: rows.Rows
) -> None:
    """Write two warm-up requests for each signature: one with a single row, one with all rows.

    At most `MOST` requests are written; signatures of all tasks come first, then the other
    signatures in the order of their names.

    Args:
      directory: the folder of the SavedModel.
      model_name: the name of the model for clients.
      signature_defs: {name: SignatureDef} of the SavedModel.
      held_out: the held-out rows; the larger request contains all these rows.
    """
    names = _choose_signatures(signature_defs)
    path = os.path.join(directory, "assets.extra", FILE)
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for name in names:
            for batch in (held_out.first(1), held_out):
                request = _make_request(model_name, name, signature_defs[name], batch)
                writer.write(request.SerializeToString())


def _choose_signatures(names: Iterable[str]) -> list[str]:
    """Return the names of the signatures that get warm-up requests, in their order."""
    names, room = sorted(names), MOST // 2
    if len(names) <= room:
        return names
    first = [name for name in _OF_ALL_TASKS if name in names]
    others = [name for name in names if name not in first]
    line = "Warm-up requests for %d of %d signatures: a server takes at most %d requests."
    _log.info(line, room, len(names), MOST)
    return [*first, *others[: room - len(first)]]


def predict_inputs(directory: str) -> dict[str, list[dict[str, np.ndarray]]]:
    """Read the inputs of the warm-up requests for Predict calls from an export.

    Returns:
      {signature: a list with a map {input: array} for each request}.
    """
    tensor = type(tf.make_tensor_proto(0))
    requests: dict[str, list[dict[str, np.ndarray]]] = {}
    paths = list(filter(tf.io.gfile.exists, [os.path.join(directory, "assets.extra", FILE)]))
    logs = (PredictionLog.FromString(record.numpy()) for record in tf.data.TFRecordDataset(paths))
    for request in (log.predict_log.request for log in logs if log.HasField("predict_log")):
        arrays = {e.key: tf.make_ndarray(tensor.FromString(e.value)) for e in request.inputs}
        requests.setdefault(request.model_spec.signature_name, []).append(arrays)
    return requests


def _make_request(model_name: str, name: str, signature: Any, batch: rows.Rows) -> Any:
    spec = {"name": model_name, "signature_name": name}
    kind = signature.method_name.rpartition("/")[2]
    if kind == "predict":
        request = {"model_spec": spec, "inputs": list(_make_inputs(name, signature, batch))}
    else:
        request = {"model_spec": spec, "input": {"example_list": {"examples": batch.examples}}}
    return PredictionLog(**{f"{kind}_log": {"request": request}})


def _make_inputs(name: str, signature: Any, batch: rows.Rows) -> Iterator[dict[str, Any]]:
    arrays = batch.raw() if signatures.is_raw(name) else {inputs.EXAMPLES: batch.examples}
    for key in signature.inputs:
        tensor = tf.make_tensor_proto(arrays[key])
        yield {"key": key, "value": tensor.SerializeToString()}
