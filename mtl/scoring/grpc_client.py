"""TensorFlow Serving's PredictionService, by its official stubs.

client = grpc_client.Grpc("localhost:8500")
client.predict(remote.Call(model="income"), "examples", [example], ["income/probability"])
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    model_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from mtl import checks
from mtl.scoring import batches, remote

_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}
# A batch of images is larger than the 4 MB that gRPC allows by default.
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Grpc:
    """A `remote.Client`."""

    def __init__(self, address: str):
        channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def metadata(self, call: remote.Call) -> remote.Metadata:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=_spec(call), metadata_field=["signature_def"]
        )
        response = _answer(self._stub.GetModelMetadata, request, call)
        found = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(found)
        signatures = found.signature_def.items()
        return remote.Metadata(
            version=str(response.model_spec.version.value),
            inputs={name: _types(signature.inputs) for name, signature in signatures},
            outputs={name: _types(signature.outputs) for name, signature in signatures},
        )

    def predict(
        self, call: remote.Call, input_name: str, examples: Sequence[bytes], outputs: Sequence[str]
    ) -> dict[str, np.ndarray]:
        request = predict_pb2.PredictRequest(model_spec=_spec(call), output_filter=outputs)
        request.model_spec.signature_name = call.signature
        tensor = request.inputs[input_name]
        tensor.dtype = tf.string.as_datatype_enum
        tensor.tensor_shape.dim.add(size=len(examples))
        tensor.string_val.extend(examples)
        response = _answer(self._stub.Predict, request, call)
        return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


def _spec(call: remote.Call) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=call.model)
    if call.version.isdigit():
        spec.version.value = int(call.version)
    elif call.version:
        spec.version_label = call.version
    return spec


def _types(tensors: Mapping[str, Any]) -> dict[str, tf.DType]:
    return {name: tf.as_dtype(info.dtype) for name, info in tensors.items()}


def _answer(method: Callable[..., Any], request: Any, call: remote.Call) -> Any:
    try:
        return method(request, timeout=call.deadline_secs)
    except grpc.RpcError as error:
        reason = f"{error.code().name} {error.details()}".strip(". ")
        if error.code() in _TRANSIENT:
            raise remote.TransientError(reason) from error
        if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
            raise batches.RefusedError(error.details()) from error
        raise checks.UserError(f"--server does not serve {call.model!r}: {reason}.") from error
