"""The JSON of the Open Inference Protocol (KServe v2), with its binary tensors.

document, tensors_after = open_inference.split_body(body, header)
request = open_inference.read_infer(model, document, tensors_after, most_rows=8192)
body, json_bytes = open_inference.write_infer(answer, document)

The protocol has no signatures. A request calls `raw`, the features by name, unless its parameter
`signature_name` names another one; an export without `raw` takes tf.Examples.
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


def choose_signature(model: models.Model, name: str = "") -> models.Signature:
    """Return the signature `name`, by default `raw`, or `serving_default` without it.

    Raises:
      UserError: there is none of this name.
    """
    return model.find_signature(name or (models.RAW if models.RAW in model.signatures else ""))


def describe_model(model: models.Model, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the metadata of a model, whose versions have these numbers."""
    signature = choose_signature(model)
    return {
        "name": model.name,
        "versions": list(map(str, numbers)),
        "platform": "tensorflow_savedmodel",
        "inputs": [_describe_tensor(name, own) for name, own in signature.inputs.items()],
        "outputs": [_describe_tensor(name, own) for name, own in signature.outputs.items()],
    }


def _describe_tensor(name: str, tensor: tensors.Tensor) -> dict[str, Any]:
    shape = [-1] if tensor.shape is None else [-1 if n is None else n for n in tensor.shape]
    return {"name": name, "datatype": _name_type(tensor.dtype), "shape": shape}


def _name_type(dtype: tf.DType) -> str:
    return open_inference.name_type(dtype)


def split_body(body: bytes, header: str | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object of a request, and the bytes after it.

    Args:
      body: the whole request.
      header: the value of the header with the size of the JSON; None if all of it is JSON.

    Raises:
      UserError: the header is wrong, or the JSON.
    """
    if header is None:
        return tensors.parse_json(body), memoryview(b"")
    is_size = header.isdecimal() and len(header) < 20 and int(header) <= len(body)
    checks.require(is_size, SIZE_HEADER, f"be at most the {len(body)} bytes of the body", header)
    size = int(header)
    # A view, since a body of images should not be copied.
    return tensors.parse_json(body[:size]), memoryview(body)[size:]


def read_infer(
    model: models.Model, document: Mapping[str, Any], rest: memoryview, most_rows: int
) -> requests.Request:
    """Return the request of a call of `/infer`.

    Args:
      model: the version that it calls.
      document: the JSON object.
      rest: the bytes of binary tensors, in the order of the inputs.
      most_rows: the most rows of a request.

    Raises:
      UserError: the request does not fit the model.
    """
    parameters = _take_value(document, "parameters", dict, {}, "the request")
    name = _take_value(parameters, "signature_name", str, "", "'parameters'")
    signature = choose_signature(model, name)
    inputs: dict[str, np.ndarray] = {}
    offset = 0
    for index, given in enumerate(_take_value(document, "inputs", list, None, "the request")):
        where = f"input {index}"
        checks.is_a(where, given, dict, "be an object")
        name = _take_value(given, "name", str, None, where)
        requests.require_input(signature, name)
        checks.require(name not in inputs, "the inputs", "hold each name once", name)
        inputs[name], offset = _read_input(signature.inputs[name], given, rest, offset)
    # A client that gives wrong sizes has shifted tensors, which would still be numbers.
    left = len(rest) - offset
    checks.require(not left, "the binary tensors", "fill the body", f"{left} more bytes")
    asked = _take_value(document, "outputs", list, [], "the request")
    names = [_take_value(each, "name", str, None, "an output") for each in asked]
    for described in (document, *asked):
        _take_value(described, "parameters", dict, {}, "the request or an output")
    return requests.make_request(signature, inputs, names, most_rows)


def _take_value(given: Any, key: str, kind: type, default: Any, where: str) -> Any:
    """Return the value of a key, or `default`; fail if it is of another kind, or required."""
    checks.is_a(where, given, dict, "be an object")
    value = given.get(key, default)
    names = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
    is_fitting = isinstance(value, kind) and not isinstance(value, bool)
    checks.require(is_fitting, f"{key!r} of {where}", f"be {names[kind]}", value)
    return value


def _read_input(
    tensor: tensors.Tensor, given: Mapping[str, Any], rest: memoryview, offset: int
) -> tuple[np.ndarray, int]:
    """Return the array of an input, and where the binary tensor of the next one starts."""
    name = given["name"]
    where = f"input {name!r}"
    wanted = _name_type(tensor.dtype)
    datatype = _take_value(given, "datatype", str, None, where)
    checks.require(datatype == wanted, f"'datatype' of {where}", f"be {wanted}", datatype)
    shape = _take_value(given, "shape", list, None, where)
    are_sizes = all(type(n) is int and 0 <= n < 2**31 for n in shape) and len(shape) <= _MOST_RANK
    checks.require(are_sizes, f"'shape' of {where}", "hold sizes from 0 on", shape)
    count = math.prod(shape)
    parameters = _take_value(given, "parameters", dict, {}, where)
    if "binary_data_size" in parameters:
        size = _take_value(parameters, "binary_data_size", int, None, where)
        fits = 0 <= size <= len(rest) - offset
        rule = f"be at most the {len(rest) - offset} bytes that follow"
        checks.require(fits, f"'binary_data_size' of {where}", rule, size)
        piece = rest[offset : offset + size]
        return open_inference.read_binary(where, piece, tensor.dtype, shape), offset + size
    flat, _ = tensors.flatten(where, _take_value(given, "data", list, None, where))
    rule = f"hold {count} values, as its shape {shape} says"
    checks.require(len(flat) == count, where, rule, len(flat))
    return tensors.make_array(where, flat, tensor.dtype, shape).reshape(shape), offset


def write_infer(answer: engine.Answer, document: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """Return the body of the answer, and the size of its JSON if binary tensors follow.

    Args:
      answer: the outputs.
      document: the JSON object of the request, which says which outputs are binary.
    """
    parameters = document.get("parameters", {})
    is_binary = parameters.get("binary_data_output") is True
    chosen = {
        each["name"]: bool(each.get("parameters", {}).get("binary_data", is_binary))
        for each in document.get("outputs", [])
    }
    outputs, pieces = [], []
    for name, value in answer.outputs.items():
        described = [
            f'"name": {json.dumps(name)}',
            f'"datatype": "{_name_type(_type_of(value))}"',
            f'"shape": {json.dumps(list(value.shape))}',
        ]
        if chosen.get(name, is_binary):
            pieces.append(open_inference.write_binary(value))
            described.append(f'"parameters": {{"binary_data_size": {len(pieces[-1])}}}')
        else:
            described.append(f'"data": [{", ".join(_write_values(name, value))}]')
        outputs.append(f"{{{', '.join(described)}}}")
    head = {"model_name": answer.model.name, "model_version": str(answer.model.number)}
    if "id" in document:
        head["id"] = document["id"]
    # The outputs are JSON already: `[:-1]` opens the object again to append them.
    text = f'{json.dumps(head)[:-1]}, "outputs": [{", ".join(outputs)}]}}'.encode()
    return b"".join([text, *pieces]), len(text) if pieces else None


def _type_of(value: np.ndarray) -> tf.DType:
    return tf.string if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype)


def _write_values(name: str, value: np.ndarray) -> list[str]:
    texts = tensors.write_values(value.ravel())
    if value.dtype.kind in "OSU" and any(text.startswith("{") for text in texts):
        fix = "Ask for it with the parameter binary_data."
        raise checks.UserError(f"output {name!r} holds bytes that are not UTF-8. {fix}")
    return texts
