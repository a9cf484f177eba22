"""TensorFlow Serving's gRPC: the predictions of the export, codes of errors, odd messages."""

import contextlib
import socket
import struct

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from mtl.tools.serve import grpc_server
from tests.tools.serve.conftest import NAME, serving
from tests.tools.serve.rest_test import EXAMPLE

pytestmark = pytest.mark.medium


@pytest.fixture
def stub(served):
    with grpc.insecure_channel(served.grpc) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def make(inputs, signature="raw", outputs=(), name=NAME, version=None):
    request = predict_pb2.PredictRequest(output_filter=outputs)
    request.model_spec.name, request.model_spec.signature_name = name, signature
    if version is not None:
        request.model_spec.version.value = version
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


@contextlib.contextmanager
def refused(code, says):
    with pytest.raises(grpc.RpcError) as error:
        yield
    assert error.value.code() == grpc.StatusCode[code], error.value
    assert says in error.value.details() and "\n" not in error.value.details(), error.value


@pytest.mark.parametrize("signature", ["serving_default", "lean", "price", "raw", "raw/kind"])
def test_predictions_are_those_of_the_export_to_the_bit(signature, stub, rows, expected):
    wanted = expected(signature, rows[signature])
    response = stub.Predict(make(rows[signature], signature), timeout=20)
    assert response.model_spec.version.value == 7
    assert response.model_spec.signature_name == signature
    assert sorted(response.outputs) == sorted(wanted)
    for name, value in wanted.items():
        found = tf.make_ndarray(response.outputs[name])
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


def test_outputs_can_be_chosen_and_stand_in_fields(stub, rows, expected):
    wanted = expected("raw", rows["raw"])
    response = stub.Predict(make(rows["raw"], outputs=["price/value"], version=7), timeout=20)
    assert list(response.outputs) == ["price/value"]
    found = np.float32(response.outputs["price/value"].float_val)
    np.testing.assert_array_equal(found, wanted["price/value"])


def test_an_empty_batch(stub):
    request = make({}, "")
    request.inputs["examples"].CopyFrom(tf.make_tensor_proto([], tf.string, [0]))
    response = stub.Predict(request, timeout=20)
    assert tf.make_ndarray(response.outputs["price/value"]).shape == (0,)


def example():
    feature = {
        "id": tf.train.Feature(int64_list={"value": [5]}),
        "x": tf.train.Feature(float_list={"value": EXAMPLE["x"]}),
        "word": tf.train.Feature(bytes_list={"value": [b"red"]}),
        "pixels": tf.train.Feature(int64_list={"value": [7] * 16}),
        "tags": tf.train.Feature(bytes_list={"value": [b"green"]}),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


@pytest.mark.parametrize("with_context", [False, True])
def test_classify_and_regress(with_context, stub, expected):
    whole = example()
    wanted = expected("serving_default", {"examples": [whole.SerializeToString()]})
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name, request.model_spec.signature_name = NAME, "kind/classify"
    if with_context:
        given = request.input.example_list_with_context
        given.context.features.feature["word"].CopyFrom(whole.features.feature.pop("word"))
        given.examples.append(whole)
    else:
        request.input.example_list.examples.append(whole)
    (row,) = stub.Classify(request, timeout=20).result.classifications
    assert [own.label for own in row.classes] == ["cat", "dog", "bird"]
    scores = np.float32([own.score for own in row.classes])
    np.testing.assert_allclose(scores, wanted["kind/probabilities"][0], rtol=1e-6)
    request = regression_pb2.RegressionRequest(input=request.input)
    request.model_spec.name, request.model_spec.signature_name = NAME, "price/regress"
    (value,) = stub.Regress(request, timeout=20).result.regressions
    np.testing.assert_allclose(value.value, wanted["price/value"][0], rtol=1e-6)


def test_metadata_and_status(served, stub):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = NAME
    found = get_model_metadata_pb2.SignatureDefMap()
    response = stub.GetModelMetadata(request, timeout=20)
    assert response.metadata["signature_def"].Unpack(found)
    assert {"serving_default", "raw/kind", "kind/classify"} <= set(found.signature_def)
    with grpc.insecure_channel(served.grpc) as channel:
        status = model_service_pb2_grpc.ModelServiceStub(channel)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = NAME
        (state,) = status.GetModelStatus(request, timeout=20).model_version_status
        assert (state.version, state.state) == (7, state.AVAILABLE)
        request.model_spec.version.value = 8
        with refused("NOT_FOUND", "version 8 is not loaded, only 7"):
            status.GetModelStatus(request, timeout=20)


@pytest.mark.parametrize(
    "changes, code, says",
    [
        ({"name": "shpo"}, "NOT_FOUND", "Did you mean 'shop'?"),
        ({"version": 8}, "NOT_FOUND", "version 8 is not loaded, only 7"),
        ({"signature": "rav"}, "INVALID_ARGUMENT", "Did you mean 'raw'?"),
        ({"outputs": ["price/valeu"]}, "INVALID_ARGUMENT", "Did you mean 'price/value'?"),
        ({"outputs": ["kind/class"] * 2}, "INVALID_ARGUMENT", "hold each name once"),
    ],
)
def test_wrong_names(changes, code, says, stub, rows):
    with refused(code, says):
        stub.Predict(make(rows["raw"], **changes), timeout=20)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"x": np.zeros([32, 3])}, "input 'x' must be float32, got 'float64'"),
        ({"x": np.zeros([32, 2], np.float32)}, "input 'x' must have the shape [rows, 3]"),
        ({"x": np.zeros([31, 3], np.float32)}, "input 'x' must have 32 rows, like other inputs"),
        ({"y": np.zeros([32, 3], np.float32)}, "an input of 'raw' must be one of"),
        ({"x": None}, "the signature 'raw' needs the inputs 'x'"),
        ({"tags/length": None}, "input 'tags' must come with 'tags/length'"),
        ({"tags/length": np.full(32, 99)}, "input 'tags/length' must be from 0 to 3"),
    ],
)
def test_wrong_inputs(changes, says, stub, rows):
    given = {**rows["raw"], **changes}
    with refused("INVALID_ARGUMENT", says):
        stub.Predict(make({n: v for n, v in given.items() if v is not None}), timeout=20)


@pytest.mark.parametrize(
    "sizes, says",
    [
        ([2**40], "input 'x' must have at most"),
        ([2**20, 2**20, 2**30], "input 'x' must have at most"),
        ([-1, 3], "input 'x' must have a shape of sizes from 0 on"),
        ([7], "input 'x' must have the shape [rows, 3]"),
    ],
)
def test_a_short_message_gets_no_large_array(sizes, says, stub, rows):
    """One value can stand for a whole shape."""
    request = make(rows["raw"])
    tensor = request.inputs["x"]
    tensor.Clear()
    tensor.dtype = tf.float32.as_datatype_enum
    tensor.float_val.append(1.0)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    with refused("INVALID_ARGUMENT", says):
        stub.Predict(request, timeout=20)


def test_odd_tensors(stub, rows):
    request = make(rows["raw"])
    request.inputs["x"].tensor_content = b"abc"
    with refused("INVALID_ARGUMENT", "input 'x' must be a tensor"):
        stub.Predict(request, timeout=20)
    request.inputs["x"].dtype = 99
    with refused("INVALID_ARGUMENT", "input 'x' must be a tensor"):
        stub.Predict(request, timeout=20)
    request.inputs["x"].tensor_shape.unknown_rank = True
    with refused("INVALID_ARGUMENT", "input 'x' must have a shape"):
        stub.Predict(request, timeout=20)


def test_other_odd_requests(served, stub):
    with refused("INVALID_ARGUMENT", "Could not parse example"):
        stub.Predict(make({"examples": [b"\xff"]}, ""), timeout=20)
    with refused("INVALID_ARGUMENT", "the request must hold an example"):
        request = regression_pb2.RegressionRequest()
        request.model_spec.name, request.model_spec.signature_name = NAME, "price/regress"
        stub.Regress(request, timeout=20)
    request = make({}, "")
    request.model_spec.version_label = "stable"
    with refused("NOT_FOUND", "the label 'stable' needs TensorFlow Serving"):
        stub.Predict(request, timeout=20)
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/MultiInference")
        with refused("UNIMPLEMENTED", ""):
            call(b"", timeout=20)
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        with pytest.raises(grpc.RpcError):
            call(b"\xff\xff", timeout=20)


def write_frame(kind, flags, stream, payload):
    """A frame of HTTP/2."""
    return struct.pack(">IBBI", len(payload), kind, flags, stream)[1:] + payload


def write_header(name, value):
    """A header of HTTP/2, uncompressed."""
    return b"\0" + b"".join(bytes([len(text)]) + text for text in (name, value))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + write_frame(4, 0, 0, b"")
CALL = write_frame(
    1,
    4,
    1,
    b"".join(
        [
            write_header(b":method", b"POST"),
            write_header(b":scheme", b"http"),
            write_header(b":path", b"/tensorflow.serving.PredictionService/Predict"),
            write_header(b":authority", b"x"),
            write_header(b"te", b"trailers"),
            write_header(b"content-type", b"application/grpc"),
        ]
    ),
)


@pytest.mark.parametrize(
    "sent, says",
    [
        (b"PRI * HT", b"before handshake timeout"),
        (PREFACE + CALL[:40], b"connection idle"),
        # Three of the eight bytes that its frame announces.
        (PREFACE + CALL + write_frame(0, 1, 1, b"\0" * 8)[:-5], b"did not come within 0.1 seconds"),
    ],
)
def test_a_client_that_sends_slowly_is_cut(sent, says, base):
    with serving(base, timeout_secs=0.1) as served:
        host, _, port = served.grpc.partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as opened:
            opened.sendall(sent)
            received = b""
            while says not in received:
                data = opened.recv(10_000)
                assert data, received
                received += data


def test_a_call_without_a_message(stub, served):
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        with refused("INVALID_ARGUMENT", "the call has no message"):
            call(iter([]), timeout=20)


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64", "bool"]
)
def test_every_type_survives(dtype):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    proto = tf.make_tensor_proto(0)
    proto.Clear()
    grpc_server.write_tensor(array, proto)
    found = tf.make_ndarray(proto)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
