"""Reads requests and writes answers in the JSON of TensorFlow Serving's REST interface.

request = rest.read_predict(model, {"instances": [{"age": 39}]}, most_rows=8192)
rest.write_predict(outputs, is_by_row=True)              # '{"predictions": [...]}'
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import json_format
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from mtl import checks
from mtl import spec as spec_lib
from mtl.deferred import tf
from mtl.tools.serve import models, requests, tensors, versions

ROWS, COLUMNS = "instances", "inputs"
# As in TensorFlow Serving, the texts of an output whose name ends with this suffix are always
# written as base64.
_BYTES = "_bytes"
_KEYS = ("signature_name", ROWS, COLUMNS)


def is_by_row(document: Mapping[str, Any]) -> bool:
    """Return True for the row format, `{"instances": [...]}`, and False for `{"inputs": ...}`.

    Raises:
      UserError: the request has neither the key `instances` nor `inputs`, or has both.
    """
    if (ROWS in document) == (COLUMNS in document):
        rule = f"have one of the keys {ROWS!r} and {COLUMNS!r}"
        unknown = [key for key in document if key not in _KEYS]
        near = next(filter(None, (checks.nearest(key, (ROWS, COLUMNS)) for key in unknown)), "")
        checks.fail("the request", rule, list(document), near)
    return ROWS in document


def read_predict(
    model: models.Model, document: Mapping[str, Any], most_rows: int
) -> requests.Request:
    """Turn the JSON of a call of `:predict` into a request.

    Args:
      model: the version of the model.
      document: the JSON object, with the key `instances` or `inputs`.
      most_rows: the largest allowed number of rows.

    Raises:
      UserError: the JSON does not fit the model.
    """
    signature = model.find_signature(_read_name(document))
    has_rows = is_by_row(document)
    if has_rows:
        inputs = _read_rows(signature, document[ROWS])
    else:
        inputs = _read_columns(signature, document[COLUMNS])
    request = requests.make_request(signature, inputs, [], most_rows)
    is_empty = has_rows and not request.rows
    rule = f"name an input of {signature.name!r}"
    checks.require(not is_empty, "each row", rule, list(inputs))
    return request


def _read_name(document: Mapping[str, Any]) -> str:
    name = document.get("signature_name", "")
    checks.is_a("'signature_name'", name, str, "be a text")
    return name


def _read_rows(signature: models.Signature, rows: Any) -> dict[str, np.ndarray]:
    is_filled = isinstance(rows, list) and bool(rows)
    checks.require(is_filled, f"{ROWS!r}", "be a list of at least one row", rows)
    if _is_value(rows[0]):
        input_name = _require_single(signature, ROWS, "objects")
        objects = [index for index, row in enumerate(rows) if not _is_value(row)]
        checks.require(
            not objects, "each row", "be a value, like the first row", rows[(objects or [0])[0]]
        )
        return {input_name: _read_input(signature, input_name, rows)}
    names = list(rows[0])
    for index, row in enumerate(rows):
        is_same = isinstance(row, dict) and row.keys() == rows[0].keys()
        got = list(row) if isinstance(row, dict) else row
        rule = f"have the inputs of row 0, {', '.join(names)}"
        checks.require(is_same, f"row {index}", rule, got)
    columns = {name: [row[name] for row in rows] for name in names}
    return _read_lists(signature, columns) | {
        name: _read_input(signature, name, column)
        for name, column in columns.items()
        if not _lacks_lengths(signature, name, columns)
    }


def _lacks_lengths(signature: models.Signature, name: str, columns: Mapping[str, Any]) -> bool:
    return name in signature.lengths and signature.lengths[name] not in columns


def _read_lists(
    signature: models.Signature, columns: Mapping[str, list[Any]]
) -> dict[str, np.ndarray]:
    """Return padded arrays and lengths for lists whose lengths are missing in the request."""
    inputs = {}
    for name in filter(lambda name: _lacks_lengths(signature, name, columns), columns):
        rows = columns[name]
        for index, row in enumerate(rows):
            checks.is_a(f"input {name!r} of row {index}", row, list, "be a list")
        lengths = np.array(list(map(len, rows)), np.int64)
        # In the row format, lists may have different lengths, but the graph needs an array [B, L]
        # and lengths [B]. An input of texts accepts only texts, and an input of truth values only
        # True and False.
        padding = {tf.string: "", tf.bool: False}.get(signature.inputs[name].dtype, 0)
        width = int(lengths.max())
        padded = [[*row, *[padding] * (width - len(row))] for row in rows]
        inputs[name] = _read_input(signature, name, padded)
        inputs[signature.lengths[name]] = lengths
    return inputs


def _read_columns(signature: models.Signature, value: Any) -> dict[str, np.ndarray]:
    if _is_value(value):
        input_name = _require_single(signature, COLUMNS, "an object")
        return {input_name: _read_input(signature, input_name, value)}
    return {name: _read_input(signature, name, column) for name, column in value.items()}


def _is_value(value: Any) -> bool:
    """Return False if JSON is an object with named inputs, True for a value or a list of values."""
    return not isinstance(value, dict) or (list(value) == [tensors.B64])


def _require_single(signature: models.Signature, key: str, kind: str) -> str:
    names = list(signature.inputs)
    rule = f"hold {kind}, as {signature.name!r} has several inputs: {', '.join(names)}"
    checks.require(len(names) == 1, f"{key!r}", rule, "values")
    return names[0]


def _read_input(signature: models.Signature, name: str, value: Any) -> np.ndarray:
    requests.require_input(signature, name)
    return tensors.read_tensor(f"input {name!r}", value, signature.inputs[name])


def write_predict(outputs: Mapping[str, np.ndarray], is_by_row: bool) -> str:
    """Return the JSON for the answer to a call of `:predict`.

    If there is a single output, the JSON holds its values without its name.

    Args:
      outputs: {output: [B, ...]}.
      is_by_row: True for the row format, whose answer holds a value or an object for each row.
    """
    rows = {
        name: tensors.write_rows(value, name.endswith(_BYTES)) for name, value in outputs.items()
    }
    keys = [f"{json.dumps(name)}: " for name in rows]
    if is_by_row:
        if len(rows) == 1:
            (texts,) = rows.values()
        else:
            lines = zip(*rows.values(), strict=True)
            texts = [_write_object(keys, line) for line in lines]
        return f'{{"predictions": [{", ".join(texts)}]}}'
    columns = [f"[{', '.join(texts)}]" for texts in rows.values()]
    return f'{{"outputs": {columns[0] if len(columns) == 1 else _write_object(keys, columns)}}}'


def _write_object(keys: Sequence[str], texts: Sequence[str]) -> str:
    return f"{{{', '.join(key + text for key, text in zip(keys, texts, strict=True))}}}"


def read_examples(
    model: models.Model, document: Mapping[str, Any], method: str, most_rows: int
) -> requests.Request:
    """Turn the JSON of a call of `:classify` or `:regress` into a request.

    Args:
      model: the version of the model.
      document: the JSON object with `examples`; an optional `context` holds features for all
        examples.
      method: "classify" or "regress".
      most_rows: the largest allowed number of rows.

    Raises:
      UserError: the JSON does not fit the model.
    """
    signature = model.find_signature(_read_name(document), method)
    context, rows = document.get("context", {}), document.get("examples")
    checks.is_a("'context'", context, dict, "be an object")
    is_filled = isinstance(rows, list) and bool(rows)
    checks.require(is_filled, "'examples'", "be a list of at least one object", rows)
    examples = []
    for index, row in enumerate(rows or ()):
        checks.is_a(f"example {index}", row, dict, "be an object")
        duplicates = sorted(context.keys() & row.keys())
        rule = "hold no feature of 'context'"
        checks.require(not duplicates, f"example {index}", rule, duplicates)
        examples.append(_write_example(model.spec, index, {**context, **row}))
    return make_examples_request(signature, examples, most_rows)


def make_examples_request(
    signature: models.Signature, examples: Sequence[bytes], most_rows: int
) -> requests.Request:
    """Return a request that sends serialized tf.Examples.

    Args:
      signature: a signature whose only input takes tf.Examples.
      examples: B serialized tf.Examples.
      most_rows: the largest allowed number of rows.

    Raises:
      UserError: there are no examples, or too many examples.
    """
    checks.require(bool(examples), "the request", "hold an example", list(examples))
    array = np.empty(len(examples), object)
    array[:] = examples
    name = next(iter(signature.inputs))
    return requests.make_request(signature, {name: array}, [], most_rows)


def _write_example(spec: spec_lib.Spec | None, index: int, row: Mapping[str, Any]) -> bytes:
    """Serialize a row as a tf.Example, with the types of the model's features if they are known."""
    features = {}
    for name, value in row.items():
        where = f"feature {name!r} of example {index}"
        flat, _ = tensors.flatten(where, value)
        if spec is None:
            # Check the name, because `tf.train.Features` would fail on a name that is not UTF-8.
            tensors.make_array(f"a name in example {index}", [name], tf.string)
            features[name] = _guess_feature(where, flat)
            continue
        checks.one_of(f"a feature of example {index}", name, sorted(spec.feature_fields))
        field = spec.feature_fields[name]
        if not field.is_ragged:
            checks.require(len(flat) == field.size, where, f"hold {field.size} values", len(flat))
        # Accept 0 and 1 for false and true, as TensorFlow Serving does.
        is_number = field.dtype == "bool" and set(map(type, flat)) == {int}
        dtype = tf.int64 if is_number else tf.as_dtype(field.dtype)
        features[name] = field.proto(tensors.make_array(where, flat, dtype))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _guess_feature(where: str, flat: Sequence[Any]) -> Any:
    """Return a tf.train.Feature of integers, floats or texts, depending on the JSON values."""
    kinds = set(map(type, flat))
    if kinds <= {int, bool}:
        array = tensors.make_array(where, list(map(int, flat)), tf.int64)
        return tf.train.Feature(int64_list={"value": array.tolist()})
    if kinds == {float}:
        array = tensors.make_array(where, flat, tf.float32)
        return tf.train.Feature(float_list={"value": array.tolist()})
    array = tensors.make_array(where, flat, tf.string)
    return tf.train.Feature(bytes_list={"value": array.tolist()})


def write_classes(outputs: Mapping[str, np.ndarray]) -> str:
    """Return the JSON for the answer to `:classify`: pairs of class and score for each row.

    Args:
      outputs: {"classes": [B, C], "scores": [B, C]}; classes or scores may be missing.

    Raises:
      UserError: both classes and scores are missing.
    """
    labels, scores = split_classes(outputs)
    texts = zip(map(tensors.write_values, labels), map(tensors.write_values, scores), strict=True)
    rows = [", ".join(f"[{a}, {b}]" for a, b in zip(*row, strict=True)) for row in texts]
    return f'{{"results": [{", ".join(f"[{row}]" for row in rows)}]}}'


def split_classes(outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and scores of B rows.

    Args:
      outputs: {"classes": [B, C], "scores": [B, C]}; classes or scores may be missing.

    Returns:
      The classes as bytes, [B, C], and the scores, [B, C]. Missing classes are empty, and missing
      scores are 0.

    Raises:
      UserError: both classes and scores are missing.
    """
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is not None:
        return classes, np.zeros(classes.shape, np.float32) if scores is None else scores
    if scores is None:
        raise checks.UserError("the signature has neither 'classes' nor 'scores'.")
    return np.full(scores.shape, b"", object), scores


def write_values(outputs: Mapping[str, np.ndarray]) -> str:
    """Return the JSON for the answer to a call of `:regress`: a number for each row.

    Args:
      outputs: {output: [B] or [B, 1]}, with a single output.
    """
    values = next(iter(outputs.values())).ravel()
    return f'{{"results": [{", ".join(tensors.write_values(values))}]}}'


def describe_status(states: Mapping[int, versions.State]) -> Any:
    """Return a GetModelStatusResponse with the state of each version.

    Args:
      states: {version: state}.
    """
    response = get_model_status_pb2.GetModelStatusResponse()
    for number, state in states.items():
        status = response.model_version_status.add(version=number)
        status.state = get_model_status_pb2.ModelVersionStatus.State.Value(state.name)
        status.status.error_code = 2 if state.reason else 0  # The gRPC codes UNKNOWN and OK.
        status.status.error_message = state.reason
    return response


def describe_model(model: models.Model) -> Any:
    """Return a GetModelMetadataResponse with the signatures of a model."""
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = model.name
    response.model_spec.version.value = model.number
    signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=model.signature_defs)
    response.metadata["signature_def"].Pack(signatures)
    return response


def write_message(message: Any) -> str:
    """Return a protocol buffer as JSON, with all fields, as TensorFlow Serving writes it."""
    parameters = inspect.signature(json_format.MessageToDict).parameters
    # protobuf 5 renamed the argument that writes fields without a value.
    names = ("always_print_fields_with_no_presence", "including_default_value_fields")
    option = next(name for name in names if name in parameters)
    options = {"preserving_proto_field_name": True, option: True}
    return json.dumps(json_format.MessageToDict(message, **options), indent=1)


def write_metadata(model: models.Model) -> str:
    """Return the JSON for the answer to a call of `/metadata`."""
    signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=model.signature_defs)
    document = {
        "model_spec": {
            "name": model.name,
            "signature_name": "",
            "version": str(model.number),
        },
        "metadata": {"signature_def": json.loads(write_message(signatures))},
    }
    return json.dumps(document, indent=1)
