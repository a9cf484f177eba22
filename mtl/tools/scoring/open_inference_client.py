"""Calls a server by the Open Inference Protocol (KServe v2): Triton, MLServer or launch.serve.

client = open_inference_client.OpenInference("http", "localhost:8000", access.ANYONE)
client.predict(protocol.Call(model="income"), "examples", [example], ["income/probability"])

A model whose only input is named `examples` gets serialized tf.Examples. A model with other inputs
gets the features of the tf.Examples as tensors; the server's metadata has the names and the shapes
of these inputs.
"""

from __future__ import annotations

import base64
import json
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.serving import inputs as inputs_lib
from mtl.tools.scoring import access, batches, http_calls, open_inference, protocol

_BINARY = "binary_tensor_data"
_SIZE = "binary_data_size"


class _Input(NamedTuple):
    """The type and the shape of a model's input, with -1 for any size."""

    dtype: tf.DType
    shape: Sequence[int]


class OpenInference:
    """A client of the Open Inference Protocol; implements `protocol.Client`."""

    def __init__(self, scheme: str, address: str, secure: access.Access):
        self._http = http_calls.Http(scheme, address, secure)
        self._inputs: dict[str, _Input] = {}
        self._ranks: dict[str, int] = {}
        self._is_binary = False

    def metadata(self, call: protocol.Call) -> protocol.Metadata:
        # The Open Inference Protocol has no signatures.
        rule = "be left out for a server at /v2, whose protocol has no signatures"
        is_default = call.signature == protocol.Call.signature
        checks.require(is_default, "--signature", rule, call.signature)
        metadata = self._describe(call)
        self._is_binary = _BINARY in metadata["extensions"]
        self._inputs = {n: _Input(dtype, shape) for n, (dtype, shape) in metadata["inputs"].items()}
        self._ranks = {name: len(shape) for name, (_, shape) in metadata["outputs"].items()}
        outputs = {name: dtype for name, (dtype, _) in metadata["outputs"].items()}
        return protocol.Metadata(
            version=call.version or metadata["version"],
            inputs={call.signature: {inputs_lib.EXAMPLES: tf.string}},
            outputs={call.signature: outputs},
        )

    def _describe(self, call: protocol.Call) -> dict[str, Any]:
        """Return the extensions that the server supports, and the metadata of the model."""
        path = _make_path(call)
        server = self._http.exchange("GET", "/v2", None, call)
        model = self._http.exchange("GET", path, None, call)
        try:
            extensions, metadata = (
                json.loads(server.body).get("extensions", []),
                json.loads(model.body),
            )
            return {
                "extensions": list(map(str, extensions)),
                "version": _find_newest(metadata.get("versions") or []),
                "inputs": {
                    str(tensor["name"]): _read_tensor(tensor) for tensor in metadata["inputs"]
                },
                "outputs": {
                    str(tensor["name"]): _read_tensor(tensor) for tensor in metadata["outputs"]
                },
            }
        except http_calls.MALFORMED as error:
            raise _odd_reply(path, model.body) from error

    def predict(
        self,
        call: protocol.Call,
        input_name: str,
        examples: Sequence[bytes],
        outputs: Sequence[str],
    ) -> dict[str, np.ndarray]:
        takes_examples = list(self._inputs) == [inputs_lib.EXAMPLES]
        if takes_examples:
            # If Triton joins requests to batches, examples have the shape [rows, 1] instead of
            # [rows].
            shape = [len(examples), *self._inputs[inputs_lib.EXAMPLES].shape[1:]]
            arrays = {inputs_lib.EXAMPLES: _make_texts(examples).reshape(shape)}
        else:
            arrays = read_features(self._inputs, examples)
        # JSON cannot hold bytes, so serialized tf.Examples are sent as binary tensors.
        body, size = _write_request(arrays, outputs, takes_examples or self._is_binary)
        headers = {} if size is None else {open_inference.SIZE_HEADER: str(size)}
        headers |= {} if size is None else {"Content-Type": "application/octet-stream"}
        path = f"{_make_path(call)}/infer"
        reply = self._http.exchange("POST", path, body, call, headers)
        try:
            arrays_by_name = _read_reply(reply)
            return {
                name: _drop_axis(array, self._ranks.get(name))
                for name, array in arrays_by_name.items()
            }
        except (*http_calls.MALFORMED, OverflowError) as error:
            raise _odd_reply(path, reply.body) from error


def _make_path(call: protocol.Call) -> str:
    path = f"/v2/models/{urllib.parse.quote(call.model, safe='')}"
    version = urllib.parse.quote(call.version, safe="")
    return f"{path}/versions/{version}" if version else path


def _find_newest(numbers: Sequence[Any]) -> str:
    """Return the newest version; "" if there are no versions or some are not numbers."""
    texts = [str(number) for number in numbers]
    are_numbers = all(text.isdecimal() and text.isascii() and len(text) < 20 for text in texts)
    return max(texts, key=int) if texts and are_numbers else ""


def _read_tensor(description: Mapping[str, Any]) -> tuple[tf.DType, list[int]]:
    return open_inference.find_type(description["datatype"]), [
        int(size) for size in description["shape"]
    ]


def _odd_reply(path: str, body: bytes) -> checks.UserError:
    beginning = body[:100].decode(errors="replace")
    rule = f"answer {path} as the Open Inference Protocol says"
    return checks.UserError(f"--server must {rule}, got {beginning!r}.")


def _make_texts(values: Sequence[bytes]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = list(values)
    return array


def read_features(inputs: Mapping[str, _Input], examples: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Turn the features of serialized tf.Examples into tensors.

    If no example has the feature of an input, the input is left out, because the server may have a
    default value. Lists are padded to the length of the longest list, and the input `<name>/length`
    gets the lengths.

    Args:
      inputs: {name: the type and shape of an input}, from the server's metadata.
      examples: B serialized tf.Examples.

    Returns:
      {input: [B, ...]}.

    Raises:
      RefusedError: an example is malformed, or does not fit an input.
    """
    try:
        rows = [
            tf.train.Example.FromString(bytes(example)).features.feature for example in examples
        ]
    except Exception as error:  # Versions of protobuf raise different errors.
        raise batches.RefusedError("Could not parse a serialized tf.Example") from error
    arrays: dict[str, np.ndarray] = {}
    lengths = {name: inputs_lib.length_name(name) for name in inputs}
    counts = {length for length in lengths.values() if length in inputs}
    for name, model_input in inputs.items():
        if name in counts or not any(name in row for row in rows):
            continue
        values = [_read_values(name, index, row, model_input) for index, row in enumerate(rows)]
        if lengths[name] in inputs:
            arrays[lengths[name]] = np.array(list(map(len, values)), np.int64)
            values = _pad_rows(values, model_input.dtype)
        shape = _fixed_shape(name, model_input, values)
        arrays[name] = _convert_feature(name, values, model_input.dtype).reshape(
            [len(rows), *shape]
        )
    return arrays


def _read_values(name: str, index: int, row: Mapping[str, Any], model_input: _Input) -> list[Any]:
    """Return the values of a feature in an example."""
    feature = row.get(name)
    kind = feature.WhichOneof("kind") if feature is not None else None
    if feature is None or kind is None:
        if -1 in model_input.shape[1:]:
            return []  # A missing list counts as an empty list.
        raise batches.RefusedError(
            f"example {index} lacks the feature {name!r}, which the server needs"
        )
    expected = "int64_list"
    if model_input.dtype == tf.string or model_input.dtype.is_floating:
        expected = "bytes_list" if model_input.dtype == tf.string else "float_list"
    if kind != expected:
        problem = (
            f"feature {name!r} of example {index} must be {model_input.dtype.name}, got a {kind}"
        )
        raise batches.RefusedError(problem)
    return list(getattr(feature, kind).value)


def _pad_rows(values: Sequence[list[Any]], dtype: tf.DType) -> list[list[Any]]:
    width = max(map(len, values), default=0)
    padding = b"" if dtype == tf.string else 0
    return [[*row, *[padding] * (width - len(row))] for row in values]


def _fixed_shape(name: str, model_input: _Input, values: Sequence[list[Any]]) -> list[int]:
    """Return the shape of an input in one row, after filling in at most one unknown size."""
    sizes = {len(row) for row in values}
    shape = list(model_input.shape[1:])
    if len(sizes) == 1 and shape.count(-1) == 1:
        known_size = math.prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = max(sizes) // known_size if known_size else 0
    if sizes != {math.prod(shape)} or -1 in shape:
        counts = ", ".join(map(str, sorted(sizes)[:5]))
        problem = (
            f"feature {name!r} must have the shape {shape} in each example, got {counts} values"
        )
        raise batches.RefusedError(problem)
    return shape


def _convert_feature(name: str, values: Sequence[list[Any]], dtype: tf.DType) -> np.ndarray:
    flat = [value for row in values for value in row]
    if dtype == tf.string:
        return _make_texts(flat)
    if dtype.is_integer:
        for value in (min(flat, default=0), max(flat, default=0)):
            if not dtype.min <= value <= dtype.max:
                raise batches.RefusedError(f"feature {name!r} must be {dtype.name}, got {value}")
    return np.array(flat).astype(dtype.as_numpy_dtype)


def _write_request(
    arrays: Mapping[str, np.ndarray], outputs: Sequence[str], is_binary: bool
) -> tuple[bytes, int | None]:
    """Return the body of a request, and the size of its JSON; None without binary tensors."""
    inputs: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    for name, array in arrays.items():
        dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        description: dict[str, Any] = {"name": name, "shape": list(array.shape)}
        description["datatype"] = open_inference.name_type(dtype)
        if is_binary:
            pieces.append(open_inference.write_binary(array))
            description["parameters"] = {_SIZE: len(pieces[-1])}
        else:
            description["data"] = _list_values(name, array)
        inputs.append(description)
    output_fields = {"parameters": {"binary_data": True}} if is_binary else {}
    requested = [{"name": name, **output_fields} for name in outputs]
    text = json.dumps({"inputs": inputs, "outputs": requested}).encode()
    return b"".join([text, *pieces]), len(text) if is_binary else None


def _list_values(name: str, array: np.ndarray) -> list[Any]:
    if array.dtype != object:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            problem = f"feature {name!r} holds NaN or infinity, which JSON cannot hold"
            raise batches.RefusedError(f"{problem}, and the server takes no binary tensors")
        return array.ravel().tolist()
    try:
        return [value.decode() for value in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        problem = f"feature {name!r} holds bytes that are not UTF-8, which JSON cannot hold"
        raise batches.RefusedError(problem) from error


def _read_reply(reply: http_calls.Reply) -> dict[str, np.ndarray]:
    size = int(reply.headers.get(open_inference.SIZE_HEADER.lower(), len(reply.body)))
    rest = memoryview(reply.body)[size:]
    arrays: dict[str, np.ndarray] = {}
    for output in json.loads(reply.body[:size])["outputs"]:
        dtype, shape = _read_tensor(output)
        parameters = output.get("parameters") or {}
        if _SIZE in parameters:
            piece, rest = rest[: parameters[_SIZE]], rest[parameters[_SIZE] :]
            where = f"output {output['name']!r}"
            arrays[output["name"]] = open_inference.read_binary(where, piece, dtype, shape)
        else:
            # MLServer sends bytes in base64.
            is_encoded = parameters.get("content_type") == "base64"
            arrays[output["name"]] = _read_data(output["data"], dtype, shape, is_encoded)
    return arrays


def _drop_axis(array: np.ndarray, rank: int | None) -> np.ndarray:
    """Turn an output [B, 1] into [B] if its metadata says [B], because MLServer adds an axis."""
    is_wider = rank is not None and array.ndim == rank + 1 and array.shape[-1] == 1
    return array.reshape(array.shape[:-1]) if is_wider else array


def _read_data(data: Any, dtype: tf.DType, shape: Sequence[int], is_encoded: bool) -> np.ndarray:
    # The protocol allows flat lists and nested lists, so flatten the lists and apply the shape.
    flat: list[Any] = [data]
    while any(isinstance(value, list) for value in flat):
        flat = [part for value in flat for part in (value if isinstance(value, list) else [value])]
    if dtype == tf.string:
        flat = [base64.b64decode(v, validate=True) if is_encoded else v.encode() for v in flat]
    array = np.empty(len(flat), object)
    array[:] = flat
    return array.reshape(shape)
