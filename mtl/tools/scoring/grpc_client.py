"""Calls a server by TensorFlow Serving's gRPC interface, PredictionService.

client = grpc_client.Grpc("localhost:8500", access.ANYONE)
client.predict(protocol.Call(model="income"), "examples", [example], ["income/probability"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf import message
from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2, predict_pb2

from mtl import checks
from mtl.deferred import tf
from mtl.tools.scoring import access, batches, protocol

Result = TypeVar("Result")

# The status codes of an overloaded or restarting server. For any code that is not in `_TRANSIENT`,
# a further attempt would also fail.
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}
_SERVICE = "/tensorflow.serving.PredictionService"
# The largest number of values in a tensor if the message holds a single value that is repeated.
_MOST_REPEATED = 1 << 24
# Lift the default limit of gRPC, 4 MB, because a batch of images is larger.
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Grpc:
    """A client of TensorFlow Serving's gRPC interface; implements `protocol.Client`."""

    def __init__(self, address: str, secure: access.Access):
        self._secure = secure
        if secure.tls:
            credentials = grpc.ssl_channel_credentials(secure.roots())
            channel = grpc.secure_channel(address, credentials, options=_OPTIONS)
        else:
            channel = grpc.insecure_channel(address, options=_OPTIONS)
        # Parse replies outside of gRPC, because gRPC would log a traceback for a malformed reply.
        self._get_metadata, self._predict = (
            channel.unary_unary(f"{_SERVICE}/{method}", kind.SerializeToString)
            for method, kind in (
                ("GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest),
                ("Predict", predict_pb2.PredictRequest),
            )
        )

    def metadata(self, call: protocol.Call) -> protocol.Metadata:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=_name_model(call), metadata_field=["signature_def"]
        )
        return self._ask_server(self._get_metadata, request, call, _read_metadata)

    def predict(
        self,
        call: protocol.Call,
        input_name: str,
        examples: Sequence[bytes],
        outputs: Sequence[str],
    ) -> dict[str, np.ndarray]:
        request = predict_pb2.PredictRequest(model_spec=_name_model(call), output_filter=outputs)
        request.model_spec.signature_name = call.signature
        tensor = request.inputs[input_name]
        tensor.dtype = tf.string.as_datatype_enum
        tensor.tensor_shape.dim.add(size=len(examples))
        tensor.string_val.extend(examples)
        return self._ask_server(self._predict, request, call, _read_arrays)

    def _ask_server(
        self,
        method: Callable[..., Any],
        request: Any,
        call: protocol.Call,
        read: Callable[[Any], Result],
    ) -> Result:
        headers = list(self._secure.headers().items())
        try:
            return read(method(request, timeout=call.deadline_secs, metadata=headers))
        except grpc.RpcError as error:
            raise _explain_failure(error, call) from error
        except (message.DecodeError, ValueError, TypeError, KeyError) as error:
            rule = f"answer {type(request).__name__} as TensorFlow Serving does"
            raise checks.UserError(f"--server must {rule}, got {_one_line(error)!r}.") from error


def _read_metadata(reply: bytes) -> protocol.Metadata:
    response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(reply)
    signature_map = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(signature_map)
    signatures = signature_map.signature_def.items()
    return protocol.Metadata(
        version=str(response.model_spec.version.value),
        inputs={name: _read_types(signature.inputs) for name, signature in signatures},
        outputs={name: _read_types(signature.outputs) for name, signature in signatures},
    )


def _read_arrays(reply: bytes) -> dict[str, np.ndarray]:
    response = predict_pb2.PredictResponse.FromString(reply)
    return {name: _read_array(tensor) for name, tensor in response.outputs.items()}


def _read_array(tensor: Any) -> np.ndarray:
    count = math.prod(dim.size for dim in tensor.tensor_shape.dim)
    # In a message, each value takes at least a byte, unless a single value is repeated. A reply
    # with more values than bytes is an error, and would make the client allocate memory in vain.
    if count > max(tensor.ByteSize(), _MOST_REPEATED):
        raise ValueError(f"{count} values in {tensor.ByteSize()} bytes")
    return tf.make_ndarray(tensor)


def _name_model(call: protocol.Call) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=call.model)
    if call.is_label:
        spec.version_label = call.version
    elif call.version:
        spec.version.value = int(call.version)
    return spec


def _read_types(tensors: Mapping[str, Any]) -> dict[str, tf.DType]:
    return {name: tf.as_dtype(info.dtype) for name, info in tensors.items()}


def _explain_failure(error: grpc.RpcError, call: protocol.Call) -> Exception:
    details = _one_line(error.details() or "")
    reason = f"{error.code().name} {details}".strip(". ")
    if error.code() in _TRANSIENT:
        return protocol.TransientError(reason)
    if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
        return batches.RefusedError(details)
    return checks.UserError(f"--server does not serve {call.model!r}: {reason}.")


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())
