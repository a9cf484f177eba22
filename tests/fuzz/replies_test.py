"""Replies of servers with a mistake or two: what the server said, or one line; never a hang."""

import base64
import contextlib
import json
import random
import socket
import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.tools import scoring
from mtl.tools.scoring import batches
from tests.fuzz import cases

EXAMPLES = [b"a", b"\xff", b"", b"d"]
OUTPUTS = {
    "p": np.float32([0.25, 0.5, 1, -3]),
    "c": np.int64([1, 2, 2**40, -4]),
    "w": np.array([b"a", "é".encode(), b"", b"x y"], object),
    "v": np.float32([[1, 2], [3, 4], [5, 6], [7, 8]]),
    "b": np.array([True, False, True, True]),
}
CALL = scoring.Call(model="m", deadline_secs=2.0, retries=0)
ODD = (
    *(None, True, False, 0, 1, -1, 0.5, 2**70, 1e39, float("nan"), float("inf"), "", "x", "NaN"),
    *([], {}, [[]], [1, [2]], {"b64": "YQ=="}, {"b64": "YQ"}, {"b64": 3}, {"b64": "é"}, {"x": 1}),
    *(
        "1",
        "\ud800",
        [None],
        "x" * 5000,
        [1, 2, 3, 4],
        [1.5] * 4,
        ["a"] * 4,
        [[1]] * 4,
        [[[1]]] * 4,
    ),
)
SPLICE = (
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b'"',
    b"NaN",
    b"-Infinity",
    b"null",
    b"1e999",
    b"\xff",
    b"0",
)
HEADS = (
    *(
        "HTTP/1.1 200 OK",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 204 No",
        "HTTP/1.1 301 Moved",
        "HTTP/1.1 100 Go",
    ),
    *(
        "HTTP/1.1 400 Bad",
        "HTTP/1.1 404 No",
        "HTTP/1.1 500 Oh",
        "HTTP/1.1 503 Busy",
        "HTTP/9.9 200 OK",
    ),
    *(
        "HTTP/1.1 99999 OK",
        "HTTP/1.1 abc",
        "",
        "200 OK",
        "HTTP/1.1",
        "SSH-2.0-x",
        "HTTP/1.1 200 O\x00K",
    ),
)
HEADERS = (
    *(
        "Content-Length: {0}",
        "Content-Length: {1}",
        "Content-Length: -1",
        "Content-Length: x",
        "X: y",
    ),
    *(
        "Transfer-Encoding: chunked",
        "Content-Encoding: gzip",
        "Connection: close",
        "X" * 70_000,
        ": ",
    ),
    *("Content-Length: 99999999999999999999", "Location: http://localhost:1/", "\x00: \xff", "Y"),
)


def _document(outputs):
    return {"outputs": {name: _plain(value.tolist()) for name, value in outputs.items()}}


def _plain(value):
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _metadata():
    types = {"p": "DT_FLOAT", "c": "DT_INT64", "w": "DT_STRING", "v": "DT_FLOAT", "b": "DT_BOOL"}
    described = {
        "inputs": {"examples": {"dtype": "DT_STRING", "name": "x:0"}},
        "outputs": {name: {"dtype": kind, "name": "y:0"} for name, kind in types.items()},
    }
    return {
        "model_spec": {"name": "m", "version": "1"},
        "metadata": {"signature_def": {"signature_def": {"serving_default": described}}},
    }


def _places(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(part, (*path, key))


def _changed(draw: random.Random, document):
    """Return a copy of a JSON document with one part changed."""
    document = json.loads(json.dumps(document))
    path = draw.choice(list(_places(document)))
    if not path:
        return draw.choice(ODD)
    *above, key = path
    holder = document
    for step in above:
        holder = holder[step]
    how = draw.randrange(5)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.insert(key, draw.choice((holder[key], draw.choice(ODD))))
    elif how == 1:
        holder[draw.choice((f"{key}x", ""))] = holder.pop(key)
    elif how == 2:
        holder[key] = [holder[key]]
    else:
        holder[key] = draw.choice(ODD)
    return document


def _reply(draw: random.Random, document) -> tuple[bytes, bytes]:
    """Return the body of a reply, and all its bytes."""
    for _ in range(draw.choice((0, 1, 1, 2))):
        document = _changed(draw, document)
    body = json.dumps(document).encode()
    if draw.random() < 0.2:
        body = cases.damaged(draw, body, SPLICE)
    first, headers = HEADS[0], [HEADERS[0]]
    if draw.random() < 0.2:
        first = draw.choice(HEADS)
    if draw.random() < 0.2:
        headers = draw.choices(HEADERS, k=draw.randrange(3))
    raw = _framed(body, first, headers)
    return body, cases.damaged(draw, raw) if draw.random() < 0.1 else raw


def _framed(body: bytes, first: str = HEADS[0], headers=HEADERS[:1]) -> bytes:
    head = "\r\n".join([first, *headers]).format(len(body), len(body) // 2)
    return head.encode("latin1") + b"\r\n\r\n" + body


@contextlib.contextmanager
def _raw_server(replies):
    """Yield the address of a server that answers a request with the next reply and hangs up."""

    def answer(opened):
        while True:
            try:
                connection = opened.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError, IndexError):
                connection.settimeout(5)
                received = b""
                while b"\r\n\r\n" not in received or not _is_whole(received):
                    received += connection.recv(1 << 16)
                connection.sendall(replies.pop(0))

    with socket.create_server(("localhost", 0)) as opened:
        threading.Thread(target=answer, args=[opened], daemon=True).start()
        yield f"http://localhost:{opened.getsockname()[1]}"
        opened.shutdown(socket.SHUT_RDWR)


def _is_whole(request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return not lengths or len(body) >= int(lengths[0].split(b":")[1])


def _asked(address, remote=None) -> dict[str, np.ndarray] | None:
    """Return the outputs that a client gets from the server; None if it refuses the reply."""
    try:
        return (remote or scoring.connect_server(address, CALL))(EXAMPLES)
    except checks.UserError as error:
        cases.refused(error)
    except batches.RefusedError as error:  # Reader.explain puts the error into a line.
        cases.refused(checks.UserError(f"x.csv lines 1 to 4: the model refused them: {error}"))
    return None


def _check(found, said, is_whole) -> None:
    """Fail unless the outputs equal the server's, in its types, with a row for each example."""
    assert set(found) == set(OUTPUTS) or not is_whole, sorted(found)
    for name, value in found.items():
        assert len(value) == len(EXAMPLES), (name, value)
        assert value.dtype == OUTPUTS[name].dtype or not is_whole, (name, value)
        assert _flat(value.tolist()) == _flat(said[name]), (name, value, said[name])


def _flat(value) -> list[str]:
    if isinstance(value, list):
        return [f"[{len(value)}]", *(text for part in value for text in _flat(part))]
    if isinstance(value, dict):
        value = base64.b64decode(value["b64"])
    if isinstance(value, str):
        value = value.encode()
    # As float32, and its kind: 1 of JSON is a float where floats are promised.
    return [repr(float(np.float32(value))) if type(value) in (int, float) else repr(value)]


@pytest.mark.medium
def test_rest():
    replies, good = [], [_metadata(), _document(OUTPUTS)]
    with _raw_server(replies) as address:

        def case(draw):
            which = draw.random() < 0.85
            bodies = [json.dumps(document).encode() for document in good]
            replies[:] = map(_framed, bodies)
            bodies[which], replies[which] = _reply(draw, good[which])
            found = _asked(address)
            if found is None:
                return "refused"
            _check(found, json.loads(bodies[1])["outputs"], is_whole=which)
            return "right"

        outcomes = cases.run("rest", 150, case)
    assert outcomes["right"] and outcomes["refused"]


def _tensors(draw: random.Random, response) -> None:
    """Change a message of outputs in up to two places."""
    for _ in range(draw.choice((0, 1, 1, 2))):
        name = draw.choice(sorted(OUTPUTS))
        tensor = response.outputs[name]
        dims = tensor.tensor_shape.dim
        how = draw.randrange(8)
        if how == 0:
            del response.outputs[name]
        elif how == 1:
            response.outputs[name + "x"].CopyFrom(tensor)
        elif how == 2:
            tensor.dtype = draw.choice(
                (0, 1, 2, 3, 7, 9, 10, 14, 18, 19, 20, 21, 22, 23, 24, 101, 999)
            )
        elif how == 3 and dims:
            draw.choice(dims).size = draw.choice((-1, 0, 1, 3, 5, 8, 2**31, 2**40, 2**62))
        elif how == 4:
            dims.add(size=draw.choice((-1, 0, 1, 2, 4, 2**33, 2**62)))
        elif how == 5:
            tensor.tensor_shape.unknown_rank = True
        elif how == 6:
            tensor.tensor_content = cases.damaged(draw, tensor.tensor_content)
        else:
            kind = draw.choice(("float_val", "int64_val", "string_val", "bool_val"))
            values = getattr(tensor, kind)
            del values[draw.randrange(len(values) + 1) :]
            tensor.tensor_content = draw.choice((b"", tensor.tensor_content))
            values.extend([b"y" if kind == "string_val" else 1] * draw.randrange(6))


@contextlib.contextmanager
def _grpc_server(replies):
    """Yield the address of a server that answers each call with the next reply, as bytes."""
    import grpc

    handle = grpc.unary_unary_rpc_method_handler(lambda request, context: replies.pop(0))
    methods = dict.fromkeys(("GetModelMetadata", "Predict"), handle)
    service = "tensorflow.serving.PredictionService"
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


def _described():
    """Return a server's description of the signatures of the model, as bytes."""
    from tensorflow_serving.apis import get_model_metadata_pb2

    described = get_model_metadata_pb2.GetModelMetadataResponse()
    described.model_spec.version.value = 1
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signature = signatures.signature_def["serving_default"]
    signature.inputs["examples"].dtype = tf.string.as_datatype_enum
    for name, value in OUTPUTS.items():
        dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
        signature.outputs[name].dtype = dtype.as_datatype_enum
    described.metadata["signature_def"].Pack(signatures)
    return described.SerializeToString()


@pytest.mark.medium
def test_grpc():
    pytest.importorskip("tensorflow_serving", reason="needs the extra 'serving'")
    from tensorflow_serving.apis import predict_pb2

    replies, described = [], _described()
    with _grpc_server(replies) as address:
        replies[:] = [described]
        connected = scoring.connect_server(address, CALL)

        def case(draw):
            protos = {name: tf.make_tensor_proto(value) for name, value in OUTPUTS.items()}
            response = predict_pb2.PredictResponse(outputs=protos)
            replies[:] = [described, response.SerializeToString()]
            how = draw.random()
            if how < 0.1:
                replies[0] = cases.damaged(draw, described, (described, b"\x0a\x00"))
            elif how < 0.3:
                replies[1] = cases.damaged(draw, replies[1], (replies[1], b"\x0a\x00"))
            else:
                _tensors(draw, response)
                replies[1] = response.SerializeToString()
            last = replies[1]
            replies[:] = replies if how < 0.1 else [last]
            found = _asked(address, connected if how >= 0.1 else None)
            if found is None:
                return "refused"
            said = predict_pb2.PredictResponse.FromString(last).outputs
            assert sorted(found) == sorted(OUTPUTS) or how < 0.1, sorted(found)
            for name, value in found.items():
                expected = tf.make_ndarray(said[name])
                assert len(value) == len(EXAMPLES) and value.dtype == expected.dtype
                np.testing.assert_array_equal(value, expected)
            return "right"

        outcomes = cases.run("grpc", 100, case)
    assert outcomes["right"] and outcomes["refused"]
