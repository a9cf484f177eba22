"""Servers that run a real SavedModel behind TensorFlow Serving's protocols.

With tensorflow_model_server on the PATH it is that one, else gRPC by the official stubs and REST in
TensorFlow Serving's format, in threads of this process, which can also be told to fail.
"""

import base64
import collections
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import threading
from concurrent import futures

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from mtl.data import source
from mtl.tools.scoring import local

tf1 = tf.compat.v1

NAME = "tiny"


class Plain:
    """An output as JSON will hold it."""

    def __init__(self, value):
        self._value = value.tolist() if isinstance(value, np.ndarray) else value

    def tolist(self):
        return self._value


class Served:
    """The versions of a model, and the failures that answer the next calls."""

    def __init__(self, base):
        self.base, self._models = base, {}
        self.failures = collections.deque()
        self.is_open = threading.Event()
        self.is_open.set()
        self.calls, self.tokens = 0, []

    def version(self, spec_version):
        versions = sorted(int(name) for name in os.listdir(self.base) if name.isdigit())
        number = int(spec_version or versions[-1])
        if number not in versions:
            raise LookupError(f"Servable not found for request: Specific({NAME}, {number})")
        if number not in self._models:
            session = tf1.Session(graph=tf.Graph())
            with session.graph.as_default():
                meta_graph = tf1.saved_model.load(session, ["serve"], f"{self.base}/{number}")
            self._models[number] = session, meta_graph.signature_def
        return number, self._models[number]

    def signature_defs(self, number):
        defs = self.version(number)[1][1]
        return {name: d for name, d in defs.items() if not name.startswith("__")}

    def predict(self, version, signature, inputs):
        self.calls += 1
        self.is_open.wait()
        session, defs = self.version(version)[1]
        feed = {defs[signature].inputs[name].name: value for name, value in inputs.items()}
        return session.run({k: v.name for k, v in defs[signature].outputs.items()}, feed)


@contextlib.contextmanager
def grpc_server(served, certificate=None):
    """Gives HOST:PORT; over TLS with a certificate, the paths of a key and a PEM file."""
    import grpc
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def _version(self, spec, context):
            try:
                if spec.name != NAME:
                    raise LookupError(f"Servable not found for request: Latest({spec.name})")
                return served.version(spec.version.value)[0]
            except LookupError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))

        def GetModelMetadata(self, request, context):  # noqa: N802
            served.tokens.append(dict(context.invocation_metadata()).get("authorization"))
            number = self._version(request.model_spec, context)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = NAME
            response.model_spec.version.value = number
            found = get_model_metadata_pb2.SignatureDefMap(
                signature_def=served.signature_defs(number)
            )
            response.metadata["signature_def"].Pack(found)
            return response

        def Predict(self, request, context):  # noqa: N802
            if served.failures:
                context.abort(served.failures.popleft(), "told to fail")
            number = self._version(request.model_spec, context)
            inputs = {k: tf.make_ndarray(v) for k, v in request.inputs.items()}
            try:
                outputs = served.predict(number, request.model_spec.signature_name, inputs)
            except source.list_refusals() as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(local.explain_refusal(error)))
            wanted = request.output_filter or outputs
            protos = {name: tf.make_tensor_proto(outputs[name]) for name in wanted}
            return predict_pb2.PredictResponse(outputs=protos)

    server = grpc.server(futures.ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    if certificate:
        key, pem = (pathlib.Path(path).read_bytes() for path in certificate)
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, pem)]))
    else:
        port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


@contextlib.contextmanager
def rest_server(served, certificate=None):
    """Gives http://HOST:PORT, or https:// with a certificate, the paths of a key and a PEM file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            served.tokens.append(self.headers["Authorization"])
            self._answer(self._metadata)

        def do_POST(self):  # noqa: N802
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(lambda version: self._predict(version, body))

        def _answer(self, handle):
            path = self.path.removeprefix(f"/v1/models/{NAME}")
            version = path.split("/")[2].split(":")[0] if path.startswith("/versions/") else None
            try:
                if path == self.path:
                    raise LookupError("Servable not found for request: Latest")
                status = served.failures.popleft() if served.failures else 200
                answer = handle(version) if status == 200 else {"error": "told to fail"}
            except LookupError as error:
                status, answer = 404, {"error": str(error)}
            except source.list_refusals() as error:
                status, answer = 400, {"error": str(local.explain_refusal(error))}
            with contextlib.suppress(BrokenPipeError):
                self._send(status, json.dumps(answer).encode())

        def _send(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _metadata(self, version):
            number = served.version(version)[0]
            defs = served.signature_defs(number).items()
            described = {
                name: {"inputs": _infos(d.inputs), "outputs": _infos(d.outputs)} for name, d in defs
            }
            return {
                "model_spec": {"name": NAME, "signature_name": "", "version": str(number)},
                "metadata": {"signature_def": {"signature_def": described}},
            }

        def _predict(self, version, body):
            inputs = {
                name: np.array([base64.b64decode(value["b64"]) for value in values], object)
                for name, values in body["inputs"].items()
            }
            outputs = served.predict(version, body["signature_name"], inputs)
            plain = {name: _plain(value.tolist()) for name, value in outputs.items()}
            return {"outputs": plain if len(plain) > 1 else next(iter(plain.values()))}

        def log_message(self, *args):
            del args

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate[1], certificate[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http{'s' * bool(certificate)}://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def _infos(infos):
    return {
        n: {"dtype": types_pb2.DataType.Name(i.dtype), "name": i.name} for n, i in infos.items()
    }


def _plain(value):
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def tensorflow_model_server(base):
    """Gives HOST:PORT and http://HOST:PORT of the real one."""
    ports = [_free_port(), _free_port()]
    args = [f"--port={ports[0]}", f"--rest_api_port={ports[1]}"]
    args += [f"--model_name={NAME}", f"--model_base_path={base}"]
    process = subprocess.Popen(
        [shutil.which("tensorflow_model_server"), *args], stderr=subprocess.DEVNULL
    )
    yield f"localhost:{ports[0]}", f"http://localhost:{ports[1]}"
    process.terminate()
    process.wait(timeout=30)


def _free_port():
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


def assert_as_expected(outputs, trained):
    """Asserts that a model has made the predictions of a trained run, with their types."""
    assert sorted(outputs) == sorted(trained.expected)
    for name, expected in trained.expected.items():
        if expected.dtype.kind == "S":
            np.testing.assert_array_equal(outputs[name], expected.astype(object))
        else:
            assert outputs[name].dtype == expected.dtype
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-6, atol=1e-6)
