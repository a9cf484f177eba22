"""The client of the Open Inference Protocol, against servers that differ as the known ones do.

Triton takes binary tensors and says so, and knows the model's tf.Examples as one input of bytes.
MLServer has no versions here, no binary tensors, and sends text as base64.
"""

import base64
import contextlib
import http.server
import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.tools import scoring
from mtl.tools.scoring import batches, open_inference, open_inference_client
from tests import tiny
from tests.tools.scoring import servers

CALL = {"model": servers.NAME, "deadline_secs": 20.0, "retries": 0}
FEATURES = [
    {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
    {"name": "word", "datatype": "BYTES", "shape": [-1]},
]
EXAMPLES = [{"name": "examples", "datatype": "BYTES", "shape": [-1]}]
# Triton may describe a batch in this way, so that it can join requests.
EXAMPLES_OF_ROWS = [{"name": "examples", "datatype": "BYTES", "shape": [-1, 1]}]


@contextlib.contextmanager
def v2_server(served, described, extensions=(), versions=None, change=lambda document: document):
    """Gives http://HOST:PORT/v2 of a server that runs the SavedModel; `requests` are its bodies."""
    requests = []
    is_binary = bool(extensions)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            served.tokens.append(self.path)
            defs = served.signature_defs(1)["serving_default"].outputs.items()
            outputs = [
                {
                    "name": n,
                    "datatype": open_inference.name_type(tf.as_dtype(i.dtype)),
                    "shape": [-1],
                }
                for n, i in defs
            ]
            model = {"name": servers.NAME, "platform": "x", "inputs": described, "outputs": outputs}
            model |= {} if versions is None else {"versions": versions}
            server = {"name": "stub", "version": "1", "extensions": list(extensions)}
            self._send(json.dumps(server if self.path == "/v2" else change(model)).encode())

        def do_POST(self):  # noqa: N802
            served.tokens.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            size = int(self.headers.get(open_inference.SIZE_HEADER, len(body)))
            document, rest = json.loads(body[:size]), body[size:]
            requests.append(document)
            inputs = {}
            for own in document["inputs"]:
                kind = open_inference.find_type(own["datatype"])
                if "data" in own:
                    flat = [v.encode() for v in own["data"]] if kind == tf.string else own["data"]
                    array = np.array(flat, kind.as_numpy_dtype).reshape(own["shape"])
                else:
                    length = own["parameters"]["binary_data_size"]
                    array = open_inference.read_binary("x", rest[:length], kind, own["shape"])
                    rest = rest[length:]
                inputs[own["name"]] = array
            signature = "raw" if described is FEATURES else "serving_default"
            if described is EXAMPLES_OF_ROWS:
                inputs = {name: array.squeeze(1) for name, array in inputs.items()}
            outputs = served.predict(1, signature, inputs)
            asked = [own["name"] for own in document["outputs"]]
            self._answer({name: outputs[name] for name in asked})

        def _answer(self, outputs):
            described, pieces = [], []
            for name, value in outputs.items():
                kind = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
                own = {"name": name, "datatype": open_inference.name_type(kind)}
                # MLServer gives every output at least two axes.
                own["shape"] = [*value.shape, *[1] * (not is_binary and value.ndim == 1)]
                if is_binary:
                    pieces.append(open_inference.write_binary(value))
                    own["parameters"] = {"binary_data_size": len(pieces[-1])}
                elif value.dtype == object:
                    own["data"] = [base64.b64encode(v).decode() for v in value.ravel()]
                    own["parameters"] = {"content_type": "base64"}
                else:
                    own["data"] = value.tolist()
                described.append(own)
            text = json.dumps(change({"model_name": "x", "outputs": described})).encode()
            self._send(text + b"".join(pieces), len(text) if is_binary else None)

        def _send(self, body, size=None):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            if size is not None:
                self.send_header(open_inference.SIZE_HEADER, str(size))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            del args

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/v2", requests
    server.shutdown()
    server.server_close()


@pytest.mark.medium
@pytest.mark.parametrize(("examples", "shape"), [(EXAMPLES, [48]), (EXAMPLES_OF_ROWS, [48, 1])])
def test_triton(examples, shape, trained, served):
    with v2_server(served, examples, ["binary_tensor_data"], ["1", "2"]) as (address, requests):
        remote = scoring.connect_server(address, scoring.Call(**CALL))
        assert remote.identity == "tiny version 2 serving_default"
        servers.assert_as_expected(remote(trained.examples), trained)
    assert served.tokens[-1] == "/v2/models/tiny/versions/2/infer"
    (request,) = requests
    (given,) = request["inputs"]
    assert given["datatype"] == "BYTES" and given["shape"] == shape
    assert all(own["parameters"] == {"binary_data": True} for own in request["outputs"])


@pytest.mark.medium
def test_triton_with_features(trained, served):
    with v2_server(served, FEATURES, ["binary_tensor_data"]) as (address, requests):
        servers.assert_as_expected(
            scoring.connect_server(address, scoring.Call(**CALL))(trained.examples), trained
        )
    assert all("data" not in own for own in requests[0]["inputs"])


@pytest.mark.medium
def test_mlserver(trained, served):
    with v2_server(served, FEATURES) as (address, requests):
        remote = scoring.connect_server(address, scoring.Call(**CALL))
        assert remote.identity == "tiny serving_default"
        servers.assert_as_expected(remote(trained.examples), trained)
        with pytest.raises(batches.RefusedError, match="'x' holds NaN or infinity, which JSON"):
            remote([example(x=[float("nan"), 1.0, 2.0], word=[b"a"])])
    assert served.tokens[-1] == "/v2/models/tiny/infer"
    x, word = requests[0]["inputs"]
    assert np.float32(x["data"]).reshape(x["shape"]).tolist() == tiny.SPLITS["test"]["x"].tolist()
    assert [text.encode() for text in word["data"]] == list(tiny.SPLITS["test"]["word"])


@pytest.mark.medium
@pytest.mark.parametrize(
    "change, says",
    [
        (lambda d: {}, "--server must answer /v2/models/tiny"),
        (lambda d: [], "--server must answer /v2/models/tiny"),
        (lambda d: d | {"outputs": None}, "--server must answer /v2/models/tiny"),
        (
            lambda d: d | {"outputs": d["outputs"][1:]},
            "The reply lacks the output|--server must answer",
        ),
        (
            lambda d: d | {"outputs": [own | {"datatype": "FP99"} for own in d["outputs"]]},
            "--server must answer /v2/models/tiny",
        ),
        (
            lambda d: d | {"outputs": [own | {"shape": [7]} for own in d["outputs"]]},
            "--server must answer /v2/models/tiny/infer",
        ),
    ],
)
@pytest.mark.parametrize("extensions", [[], ["binary_tensor_data"]])
def test_odd_replies_are_one_line(change, says, extensions, trained, served):
    calls = []

    def later(document):
        calls.append(document)
        return document if len(calls) == 1 else change(document)

    with v2_server(served, FEATURES, extensions, change=later) as (address, _):
        remote = scoring.connect_server(address, scoring.Call(**CALL))
        with pytest.raises(checks.UserError, match=says) as refused:
            remote(trained.examples)
        assert "\n" not in str(refused.value)


def example(**features):
    feature = {}
    for name, values in features.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        feature[name] = tf.train.Feature(**{kind: {"value": values}})
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def described(**inputs):
    return {
        name: open_inference_client._Input(tf.as_dtype(dtype), shape)
        for name, (dtype, shape) in inputs.items()
    }


def test_lists_are_padded_and_counted():
    inputs = described(tags=("string", [-1, -1]), image=("uint8", [-1, 2, 2]), old=("bool", [-1]))
    inputs |= {"tags/length": open_inference_client._Input(tf.int64, [-1])}
    examples = [example(tags=[b"a", b"b"], image=[1, 2, 3, 4]), example(image=[5, 6, 7, 255])]
    found = open_inference_client.read_features(inputs, examples)
    assert sorted(found) == ["image", "tags", "tags/length"]  # Nobody has `old`.
    assert found["tags"].tolist() == [[b"a", b"b"], [b"", b""]]
    assert found["tags/length"].tolist() == [2, 0]
    assert found["image"].dtype == np.uint8 and found["image"].shape == (2, 2, 2)


@pytest.mark.parametrize(
    "examples, says",
    [
        ([example(x=[1.0] * 3), example(y=[1.0])], "example 1 lacks the feature 'x'"),
        ([example(x=[1.0] * 2)], r"'x' must have the shape \[3\] in each example, got 2 values"),
        ([example(x=[1, 2, 3])], "'x' of example 0 must be float32, got a int64_list"),
        ([example(small=[256])], "'small' must be uint8, got 256"),
        ([b"\xff"], "Could not parse"),
    ],
)
def test_examples_that_do_not_fit(examples, says):
    inputs = described(x=("float32", [-1, 3]), small=("uint8", [-1]))
    with pytest.raises(batches.RefusedError, match=says):
        open_inference_client.read_features(inputs, examples)


@pytest.mark.parametrize("server", ["grpc://localhost:1/v2", "localhost:1/v2", "http://a:1/v3"])
def test_addresses(server):
    with pytest.raises(checks.UserError, match="--server must be HOST:PORT for gRPC"):
        scoring.connect_server(server, scoring.Call(**CALL))


@pytest.mark.parametrize(
    "data", [b"\1\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0ab\0\0", b"\0\0\0\0" * 2]
)
def test_texts_that_lie_about_their_length(data):
    with pytest.raises(checks.UserError, match="x must hold 1 texts"):
        open_inference.read_binary("x", data, tf.string, [1])
