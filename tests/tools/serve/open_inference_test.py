"""The Open Inference Protocol: metadata, health, JSON and binary tensors, and our client."""

import json
import re
import struct

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.tools import scoring
from mtl.tools.scoring import batches, open_inference
from tests.tools.serve.conftest import NAME
from tests.tools.serve.rest_test import as_json

pytestmark = pytest.mark.medium
TYPES = {"float32": "FP32", "int64": "INT64", "bool": "BOOL", "uint8": "UINT8", "object": "BYTES"}
TEXT = "application/json"


def tensors(inputs):
    return [
        {
            "name": name,
            "shape": list(value.shape),
            "datatype": TYPES[value.dtype.name],
            "data": as_json(value),
        }
        for name, value in inputs.items()
    ]


def read(output):
    """An output of JSON as an array."""
    dtype = {known: name for name, known in TYPES.items()}[output["datatype"]]
    data = output["data"]
    if dtype == "object":
        data = [value.encode() for value in data]
    return np.array(data, dtype).reshape(output["shape"])


@pytest.mark.parametrize("path", ["", "/versions/7"])
def test_predictions_are_those_of_the_export(path, served, rows, expected):
    wanted = expected("raw", rows["raw"])
    body = {"id": "42", "inputs": tensors(rows["raw"])}
    reply = served.ask(f"/v2/models/{NAME}{path}/infer", body)
    assert reply.status == 200 and reply.headers["Content-Type"].startswith(TEXT)
    said = reply.json
    assert (said["model_name"], said["model_version"], said["id"]) == (NAME, "7", "42")
    assert sorted(own["name"] for own in said["outputs"]) == sorted(wanted)
    for output in said["outputs"]:
        found = read(output)
        assert found.dtype == wanted[output["name"]].dtype
        np.testing.assert_array_equal(found, wanted[output["name"]])


def test_flat_data_chosen_outputs_and_signatures(served, rows, expected):
    wanted = expected("raw/kind", rows["raw"])
    inputs = tensors(rows["raw"])
    for own in inputs:
        own["data"] = as_json(rows["raw"][own["name"]].ravel())
    outputs = [{"name": "probabilities"}]
    parameters = {"signature_name": "raw/kind"}
    said = served.infer(inputs=inputs, outputs=outputs, parameters=parameters).json
    (found,) = said["outputs"]
    np.testing.assert_array_equal(read(found), wanted["probabilities"])


def test_metadata_and_health(served):
    assert served.ask("/v2").json["extensions"] == ["binary_tensor_data"]
    assert served.ask("/v2/health/live").json == {"live": True}
    assert served.ask("/v2/health/ready").json == {"live": True, "ready": True}
    assert served.ask(f"/v2/models/{NAME}/ready").json == {"name": NAME, "ready": True}
    said = served.ask(f"/v2/models/{NAME}/versions/7").json
    assert said["versions"] == ["7"] and said["platform"] == "tensorflow_savedmodel"
    inputs = {own["name"]: (own["datatype"], own["shape"]) for own in said["inputs"]}
    assert inputs == {
        "flag": ("BOOL", [-1]),
        "id": ("INT64", [-1]),
        "pixels": ("UINT8", [-1, 4, 4, 1]),
        "tags": ("BYTES", [-1, -1]),
        "tags/length": ("INT64", [-1]),
        "word": ("BYTES", [-1]),
        "x": ("FP32", [-1, 3]),
    }
    outputs = {own["name"]: own["datatype"] for own in said["outputs"]}
    assert outputs["price/value"] == "FP32" and outputs["kind/class"] == "BYTES"


def test_binary_tensors_of_a_client_written_by_hand(served, rows, expected):
    """As the page of the extension describes the bytes; not by our own code."""
    wanted = expected("raw", rows["raw"])
    inputs, pieces = tensors(rows["raw"]), []
    for own in inputs:
        del own["data"]
        value = rows["raw"][own["name"]]
        if value.dtype == object:
            piece = b"".join(struct.pack("<I", len(v)) + v for v in value.ravel())
        else:
            piece = value.astype(value.dtype.newbyteorder("<")).tobytes()
        own["parameters"] = {"binary_data_size": len(piece)}
        pieces.append(piece)
    document = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    text = json.dumps(document).encode()
    headers = {"Inference_Header_Content_Length": str(len(text))}
    body = text + b"".join(pieces)
    reply = served.ask(f"/v2/models/{NAME}/infer", body, **headers)
    assert reply.status == 200, reply.body
    size = int(reply.headers["Inference-Header-Content-Length"])
    rest = reply.body[size:]
    for output in json.loads(reply.body[:size])["outputs"]:
        length = output["parameters"]["binary_data_size"]
        piece, rest = rest[:length], rest[length:]
        value = wanted[output["name"]]
        if value.dtype == object:
            assert piece == b"".join(struct.pack("<I", len(v)) + v for v in value)
        else:
            np.testing.assert_array_equal(np.frombuffer(piece, value.dtype), value.ravel())
    assert not rest


def changed(rows, index=0, **changes):
    inputs = tensors({name: value[:2] for name, value in rows["raw"].items()})
    inputs[index].update(changes)
    return inputs


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"name": "flga"}, "Did you mean 'flag'?"),
        ({"name": 3}, r"'name' of input \d must be a text, got 3"),
        ({"name": "x"}, "must hold each name once, got 'x'|'datatype' of input 'x' must be FP32"),
        ({"datatype": "FP32"}, "'datatype' of input 'flag' must be BOOL, got 'FP32'"),
        ({"datatype": None}, "'datatype' of input 'flag' must be a text, got None"),
        ({"shape": [3]}, r"input 'flag' must hold 3 values, as its shape \[3\] says, got 2"),
        ({"shape": [2, 1]}, r"input 'flag' must have the shape \[rows\], got \[2, 1\]"),
        ({"shape": [-2]}, "'shape' of input 'flag' must hold sizes from 0 on"),
        ({"shape": [2.0]}, "'shape' of input 'flag' must hold sizes from 0 on"),
        ({"shape": [2**30] * 9}, "input 'flag' must hold"),
        (
            {"shape": [0, 2**31 - 1, 2**31 - 1], "data": []},
            "sizes whose product is at most 2147483647",
        ),
        ({"shape": 2}, "'shape' of input 'flag' must be a list"),
        ({"data": [1, 0]}, r"input 'flag' at \[0\] must be bool, got 1"),
        ({"data": [True, [False]]}, "must hold lists of the same length"),
        ({"data": "x"}, "'data' of input 'flag' must be a list, got 'x'"),
        ({"parameters": 1}, "'parameters' of input 'flag' must be an object, got 1"),
        ({"parameters": {"binary_data_size": 9}}, "must be at most the 0 bytes that follow"),
        ({"parameters": {"binary_data_size": True}}, "must be a whole number, got True"),
        ({"parameters": {"binary_data_size": 0}}, "must have 2 bytes, as its shape"),
    ],
)
def test_wrong_tensors_are_named(changes, says, served, rows):
    at = next(i for i, name in enumerate(rows["raw"]) if name == "flag")
    reply = served.infer(inputs=changed(rows, at, **changes))
    assert reply.status == 400 and re.search(says, reply.error), reply.error


@pytest.mark.parametrize(
    "body, says",
    [
        ({}, "'inputs' of the request must be a list, got None"),
        ({"inputs": [3]}, "input 0 must be an object, got 3"),
        ({"inputs": []}, "the signature 'raw' needs the inputs"),
        ({"inputs": [], "parameters": {"signature_name": "rav"}}, "Did you mean 'raw'?"),
        ({"inputs": [], "parameters": {"signature_name": 1}}, "must be a text, got 1"),
        ({"inputs": [], "outputs": [{"name": 3}]}, "'name' of an output must be a text"),
        ({"inputs": [], "outputs": [3]}, "an output must be an object, got 3"),
        (
            {"inputs": [], "outputs": [{"name": "x", "parameters": None}]},
            "'parameters' of the request or an output must be an object, got None",
        ),
        ({"inputs": [], "outputs": [{"name": "x"}]}, "an output of 'raw' must be one of"),
    ],
)
def test_wrong_requests(body, says, served):
    reply = served.infer(**body)
    assert reply.status == 400 and says in reply.error, reply.error


@pytest.mark.parametrize("size", ["x", "-1", "999999", "", "9" * 40, "²"])
def test_a_wrong_size_of_the_json(size, served):
    headers = {"Inference_Header_Content_Length": size.encode("utf-8").decode("latin1")}
    reply = served.ask(f"/v2/models/{NAME}/infer", b'{"inputs": []}', **headers)
    assert reply.status == 400 and "Inference-Header-Content-Length" in reply.error, reply


def test_bytes_after_the_tensors(served, rows):
    text = json.dumps({"inputs": changed(rows)}).encode()
    headers = {"Inference_Header_Content_Length": str(len(text))}
    reply = served.ask(f"/v2/models/{NAME}/infer", text + b"abc", **headers)
    assert reply.status == 400 and "must fill the body, got '3 more bytes'" in reply.error


def test_our_client_predicts_as_the_export(served, rows, expected):
    examples = rows["serving_default"]["examples"]
    wanted = expected("serving_default", {"examples": examples})
    remote = scoring.connect_server(f"http://{served.rest}/v2", scoring.Call(model=NAME))
    assert remote.identity == "shop version 7 serving_default"
    found = remote(examples)
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    with pytest.raises(batches.RefusedError, match="Could not parse"):
        remote([b"\xff"])


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"model": "shpo"}, "--server does not serve 'shpo': HTTP 404 .*Did you mean 'shop'"),
        ({"version": "9"}, "HTTP 404 version 9 is not loaded, only 7"),
        ({"signature": "lean"}, "--signature must be left out for a server at /v2"),
    ],
)
def test_mistakes_of_our_client(changes, says, served):
    with pytest.raises(checks.UserError, match=says):
        scoring.connect_server(
            f"http://{served.rest}/v2", scoring.Call(**{"model": NAME} | changes)
        )


@pytest.mark.parametrize("array", [np.array([[True, False]]), np.float32([[1, np.nan]])])
def test_binary_tensors_are_read_back(array):
    kind = open_inference.find_type(open_inference.name_type(tf.as_dtype(array.dtype)))
    data = open_inference.write_binary(array)
    np.testing.assert_array_equal(open_inference.read_binary("x", data, kind, array.shape), array)
