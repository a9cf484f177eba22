"""Reads requests and writes answers of the Open Inference Protocol (KServe v2).

The body of a request is JSON, which binary tensors may follow.

document, tensors_after = open_inference.split_body(body, header)
request = open_inference.read_infer(model, document, tensors_after, most_rows=8192)
body, json_bytes = open_inference.write_infer(answer, document)

The protocol has no signatures. A request calls the signature `raw`, whose inputs are the features,
unless the parameter `signature_name` of the request names another signature. If an export has no
signature `raw`, a request sends tf.Examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.tools.scoring import open_inference
from mtl.tools.serve import engine, models, requests, tensors

SIZE_HEADER = open_inference.SIZE_HEADER
_MOST_RANK = 32
# The largest number of values in a tensor. A body has at most 2^31 - 1 bytes, and each value takes
# at least a byte.
_MOST_VALUES = 2**31 - 1


def choose_signature(model: models.Model, name: str = "") -> models.Signature:
    """Return the signature that a request calls.

    Args:
      model: the version of the model that answers.
      name: the name of the signature; "" for `raw`, or `serving_default` if there is no `raw`.

    Raises:
      UserError: the model has no signature with this name.
    """
    return model.find_signature(name or (models.RAW if models.RAW in model.signatures else ""))


def describe_model(model: models.Model, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the metadata of a model, in the format of the Open Inference Protocol.

    Args:
      model: the version of the model to describe.
      numbers: the numbers of the loaded versions.
    """
    signature = choose_signature(model)
    return {
        "name": model.name,
        "versions": list(map(str, numbers)),
        "platform": "tensorflow_savedmodel",
        "inputs": [_describe_tensor(name, tensor) for name, tensor in signature.inputs.items()],
        "outputs": [_describe_tensor(name, tensor) for name, tensor in signature.outputs.items()],
    }


def _describe_tensor(name: str, tensor: tensors.Tensor) -> dict[str, Any]:
    shape = [-1] if tensor.shape is None else [-1 if n is None else n for n in tensor.shape]
    return {"name": name, "datatype": _name_type(tensor.dtype), "shape": shape}


def _name_type(dtype: tf.DType) -> str:
    return open_inference.name_type(dtype)


def split_body(body: bytes, header: str | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object of a request, and the bytes after it.

    Args:
      body: the body of the request.
      header: the value of `SIZE_HEADER`, the size of the JSON; None if the whole body is JSON.

    Raises:
      UserError: the header or the JSON is wrong.
    """
    if header is None:
        return tensors.parse_json(body), memoryview(b"")
    is_size = header.isdecimal() and len(header) < 20 and int(header) <= len(body)
    checks.require(is_size, SIZE_HEADER, f"be at most the {len(body)} bytes of the body", header)
    size = int(header)
    # A memoryview avoids a copy, since a body of images is large.
    return tensors.parse_json(body[:size]), memoryview(body)[size:]


def read_infer(
    model: models.Model, document: Mapping[str, Any], rest: memoryview, most_rows: int
) -> requests.Request:
    """Turn the body of a call of `/infer` into a request.

    Args:
      model: the version of the model.
      document: the JSON object of the request.
      rest: the bytes of binary tensors, in the order of the inputs.
      most_rows: the largest allowed number of rows.

    Raises:
      UserError: the request does not fit the model.
    """
    parameters = _take_value(document, "parameters", dict, {}, "the request")
    name = _take_value(parameters, "signature_name", str, "", "'parameters'")
    signature = choose_signature(model, name)
    inputs: dict[str, np.ndarray] = {}
    offset = 0
    for index, entry in enumerate(_take_value(document, "inputs", list, None, "the request")):
        where = f"input {index}"
        checks.is_a(where, entry, dict, "be an object")
        name = _take_value(entry, "name", str, None, where)
        requests.require_input(signature, name)
        checks.require(name not in inputs, "the inputs", "hold each name once", name)
        inputs[name], offset = _read_input(signature.inputs[name], entry, rest, offset)
    # If bytes remain, a size in the request is wrong, and tensors were read from wrong places.
    surplus = len(rest) - offset
    checks.require(not surplus, "the binary tensors", "fill the body", f"{surplus} more bytes")
    output_entries = _take_value(document, "outputs", list, [], "the request")
    names = [_take_value(output, "name", str, None, "an output") for output in output_entries]
    for container in (document, *output_entries):
        _take_value(container, "parameters", dict, {}, "the request or an output")
    return requests.make_request(signature, inputs, names, most_rows)


def _take_value(container: Any, key: str, kind: type, default: Any, where: str) -> Any:
    """Return the value of a key, or `default`; fail if the value has another type than `kind`."""
    checks.is_a(where, container, dict, "be an object")
    value = container.get(key, default)
    names = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
    is_fitting = isinstance(value, kind) and not isinstance(value, bool)
    checks.require(is_fitting, f"{key!r} of {where}", f"be {names[kind]}", value)
    return value


def _read_input(
    tensor: tensors.Tensor, entry: Mapping[str, Any], rest: memoryview, offset: int
) -> tuple[np.ndarray, int]:
    """Return the array of an input, and the offset of the binary tensor of the next input."""
    name = entry["name"]
    where = f"input {name!r}"
    type_name = _name_type(tensor.dtype)
    datatype = _take_value(entry, "datatype", str, None, where)
    checks.require(datatype == type_name, f"'datatype' of {where}", f"be {type_name}", datatype)
    shape = _take_value(entry, "shape", list, None, where)
    are_sizes = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= _MOST_RANK
    checks.require(are_sizes, f"'shape' of {where}", "hold sizes from 0 on", shape)
    # NumPy refuses a huge shape even if one of its sizes is 0, so 0 counts as 1 here.
    is_small = math.prod(n or 1 for n in shape) <= _MOST_VALUES
    rule = f"hold sizes whose product is at most {_MOST_VALUES}"
    checks.require(is_small, f"'shape' of {where}", rule, shape)
    count = math.prod(shape)
    parameters = _take_value(entry, "parameters", dict, {}, where)
    if "binary_data_size" in parameters:
        size = _take_value(parameters, "binary_data_size", int, None, where)
        fits = 0 <= size <= len(rest) - offset
        rule = f"be at most the {len(rest) - offset} bytes that follow"
        checks.require(fits, f"'binary_data_size' of {where}", rule, size)
        piece = rest[offset : offset + size]
        return open_inference.read_binary(where, piece, tensor.dtype, shape), offset + size
    flat, _ = tensors.flatten(where, _take_value(entry, "data", list, None, where))
    rule = f"hold {count} values, as its shape {shape} says"
    checks.require(len(flat) == count, where, rule, len(flat))
    return tensors.make_array(where, flat, tensor.dtype, shape).reshape(shape), offset


def write_infer(answer: engine.Answer, document: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """Write the body of an answer to a call of `/infer`.

    Args:
      answer: the request and the outputs that the model computed for it.
      document: the JSON object of the request, which says which outputs to send as binary tensors.

    Returns:
      The body, and the number of bytes of the JSON at its start; this number is None if the whole
      body is JSON.

    Raises:
      UserError: an output that is sent as JSON has bytes that are not UTF-8.
    """
    parameters = document.get("parameters", {})
    is_binary = parameters.get("binary_data_output") is True
    are_binary = {
        output["name"]: bool(output.get("parameters", {}).get("binary_data", is_binary))
        for output in document.get("outputs", [])
    }
    outputs, pieces = [], []
    for name, value in answer.outputs.items():
        parts = [
            f'"name": {json.dumps(name)}',
            f'"datatype": "{_name_type(_type_of(value))}"',
            f'"shape": {json.dumps(list(value.shape))}',
        ]
        if are_binary.get(name, is_binary):
            pieces.append(open_inference.write_binary(value))
            parts.append(f'"parameters": {{"binary_data_size": {len(pieces[-1])}}}')
        else:
            parts.append(f'"data": [{", ".join(_write_values(name, value))}]')
        outputs.append(f"{{{', '.join(parts)}}}")
    head = {"model_name": answer.model.name, "model_version": str(answer.model.number)}
    if "id" in document:
        head["id"] = document["id"]
    # `[:-1]` removes the last bracket, so that the outputs, which are already JSON, can be
    # appended.
    text = f'{json.dumps(head)[:-1]}, "outputs": [{", ".join(outputs)}]}}'.encode()
    return b"".join([text, *pieces]), len(text) if pieces else None


def _type_of(value: np.ndarray) -> tf.DType:
    return tf.string if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype)


def _write_values(name: str, value: np.ndarray) -> list[str]:
    texts = tensors.write_values(value.ravel())
    if value.dtype.kind in "OSU" and any(text.startswith("{") for text in texts):
        fix = "Request the output with the parameter binary_data."
        raise checks.UserError(f"output {name!r} holds bytes that are not UTF-8. {fix}")
    return texts
