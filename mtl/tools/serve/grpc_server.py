"""Serves TensorFlow Serving's gRPC services: predictions, and the status of the model."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np
from tensorflow_serving.apis import (
    classification_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from mtl import checks
from mtl.deferred import tf
from mtl.tools.serve import access, engine, failures, models, requests, rest, tensors

_log = logging.getLogger("mtl.tools.serve")

# The field of a TensorProto that holds the values of each type. TensorFlow Serving fills these
# fields, and clients read only these fields: a tensor in the shorter field `tensor_content` would
# look empty.
_FIELDS: dict[Any, str] = {
    np.dtype("float32"): "float_val",
    np.dtype("float64"): "double_val",
    np.dtype("int64"): "int64_val",
    np.dtype("uint64"): "uint64_val",
    np.dtype("uint32"): "uint32_val",
    np.dtype("bool"): "bool_val",
    **{np.dtype(name): "int_val" for name in ("int8", "int16", "int32", "uint8", "uint16")},
}


# An idle connection is closed after `_IDLE` times the time limit for a request. If idle connections
# were closed earlier, clients would reconnect more often.
_IDLE = 10


class GrpcServer:
    """Serves PredictionService and ModelService."""

    def __init__(self, core: engine.Engine):
        self._engine = core
        self._server: Any = None

    async def start(self, tls: access.Tls | None) -> int:
        """Start to listen.

        Args:
          tls: the certificate and its key; None for no TLS.

        Returns:
          The port.

        Raises:
          RuntimeError: the address cannot be used.
        """
        config = self._engine.settings
        options = [
            ("grpc.max_receive_message_length", config.max_body_bytes),
            # Answers need no limit, because the number of rows is limited.
            ("grpc.max_send_message_length", -1),
            # By default, two servers can share a port, and a client would reach either server.
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", _count_millis(config.timeout_secs)),
            ("grpc.max_connection_idle_ms", _count_millis(_IDLE * config.timeout_secs)),
        ]
        bounds = [_SlowMessages(config.timeout_secs)]
        self._server = grpc.aio.server(options=options, interceptors=bounds)
        predictions, status = _Predictions(self._engine), _Status(self._engine)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            predictions, self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(status, self._server)
        # An IPv6 address contains colons, so it needs brackets before the port.
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"{host}:{config.grpc_port}"
        if tls is None:
            port = self._server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials([(tls.key, tls.certificate)])
            port = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        """Accept no more requests, and wait for the running requests."""
        if self._server is not None:
            await self._server.stop(self._engine.settings.drain_secs)


def _count_millis(secs: float) -> int:
    """Convert seconds to milliseconds, as an integer that fits into the int32 of gRPC."""
    return min(math.ceil(1000 * secs), 2**31 - 1)


class _SlowMessages(grpc.aio.ServerInterceptor):
    """Ends a call if the client does not send the whole message in time.

    A normal gRPC handler only starts when the message is complete, so it could not limit the time
    for the message. A handler for streams of messages starts at the beginning of the call, so it
    can limit the time until the message is complete. For a client, both handlers behave in the same
    way.
    """

    def __init__(self, secs: float):
        self._secs = secs

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return the handler of a call, which limits the time until the message is complete."""
        handler = await continuation(handler_call_details)
        if handler is None:  # The called method does not exist.
            return None

        async def answer(messages: Any, context: Any) -> Any:
            try:
                message = await asyncio.wait_for(anext(messages), self._secs)
            except asyncio.TimeoutError:
                problem = f"the message did not come within {self._secs:g} seconds"
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, problem)
            except StopAsyncIteration:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
            return await handler.unary_unary(message, context)

        codecs = handler.request_deserializer, handler.response_serializer
        return grpc.stream_unary_rpc_method_handler(answer, *codecs)


class _Answering:
    """Turns exceptions during gRPC calls into status codes, and counts calls."""

    def __init__(self, core: engine.Engine):
        self._engine = core

    async def _answer(self, method: str, context: Any, work: Callable[[], Awaitable[Any]]) -> Any:
        with self._engine.metrics.measure("grpc", method) as outcome:
            try:
                headers = {key.lower(): value for key, value in context.invocation_metadata()}
                self._engine.guard.require(headers.get("authorization"))
                response = await work()
            except Exception as error:
                failure = failures.explain_failure(error)
                if failure is None:
                    _log.error("A call of %s failed.", method, exc_info=error)
                    problem = f"the server failed: {type(error).__name__}"
                    failure = failures.RequestError(failures.INTERNAL, problem)
                outcome.code = failure.kind.name
                await context.abort(grpc.StatusCode[failure.kind.name], str(failure))
            outcome.code = "OK"
            return response

    def _find_version(self, spec: Any) -> int | None:
        if spec.HasField("version_label"):
            problem = f"the label {spec.version_label!r} needs TensorFlow Serving; name a version"
            raise failures.RequestError(failures.NOT_FOUND, problem)
        return spec.version.value if spec.HasField("version") else None

    async def _run(
        self,
        request: Any,
        context: Any,
        parse: Callable[[models.Model], requests.Request],
        write: Callable[[engine.Answer], Any],
    ) -> Any:
        spec = request.model_spec
        version, size = self._find_version(spec), request.ByteSize()
        secs = context.time_remaining()
        return await self._engine.predict(spec.name, version, parse, write, size, secs)

    def _describe(self, answer: engine.Answer) -> Any:
        spec = model_pb2.ModelSpec(name=answer.model.name)
        spec.version.value = answer.model.number
        spec.signature_name = answer.request.signature.name
        return spec


class _Predictions(_Answering, prediction_service_pb2_grpc.PredictionServiceServicer):
    """Implements PredictionService; calls of other methods fail with the status UNIMPLEMENTED."""

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer with the outputs of a signature."""

        def parse(model: models.Model) -> requests.Request:
            signature = model.find_signature(request.model_spec.signature_name)
            return read_request(signature, request, self._engine.settings)

        def write(answer: engine.Answer) -> Any:
            response = predict_pb2.PredictResponse(model_spec=self._describe(answer))
            for name, value in answer.outputs.items():
                write_tensor(value, response.outputs[name])
            return response

        work = lambda: self._run(request, context, parse, write)  # noqa: E731
        return await self._answer("predict", context, work)

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer with classes and scores for each tf.Example."""

        def write(answer: engine.Answer) -> Any:
            response = classification_pb2.ClassificationResponse()
            response.model_spec.CopyFrom(self._describe(answer))
            labels, scores = rest.split_classes(answer.outputs)
            for names, values in zip(labels.tolist(), scores.tolist(), strict=True):
                row = response.result.classifications.add()
                for name, value in zip(names, values, strict=True):
                    row.classes.add(label=name, score=value)
            return response

        work = lambda: self._run_examples(request, context, models.CLASSIFY, write)  # noqa: E731
        return await self._answer("classify", context, work)

    async def Regress(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer with a value for each tf.Example."""

        def write(answer: engine.Answer) -> Any:
            response = regression_pb2.RegressionResponse()
            response.model_spec.CopyFrom(self._describe(answer))
            for value in next(iter(answer.outputs.values())).ravel().tolist():
                response.result.regressions.add(value=value)
            return response

        work = lambda: self._run_examples(request, context, models.REGRESS, write)  # noqa: E731
        return await self._answer("regress", context, work)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer with the signatures of the model."""

        async def work() -> Any:
            for field in request.metadata_field:
                checks.one_of("a field of the metadata", field, ["signature_def"])
            rule = "name signature_def"
            checks.require(bool(request.metadata_field), "'metadata_field'", rule, [])
            self._engine.require_model(request.model_spec.name)
            with self._engine.versions.lease(self._find_version(request.model_spec)) as model:
                return rest.describe_model(model)

        return await self._answer("metadata", context, work)

    async def _run_examples(
        self, request: Any, context: Any, method: str, write: Callable[[engine.Answer], Any]
    ) -> Any:
        def parse(model: models.Model) -> requests.Request:
            signature = model.find_signature(request.model_spec.signature_name, method)
            examples = read_examples(request.input)
            return rest.make_examples_request(signature, examples, self._engine.settings.max_rows)

        return await self._run(request, context, parse, write)


class _Status(_Answering, model_service_pb2_grpc.ModelServiceServicer):
    """Implements ModelService; calls of other methods fail with the status UNIMPLEMENTED."""

    async def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer with the state of one version or of all versions."""

        async def work() -> Any:
            self._engine.require_model(request.model_spec.name)
            number = self._find_version(request.model_spec)
            return rest.describe_status(self._engine.versions.select_states(number))

        return await self._answer("status", context, work)


def read_request(signature: models.Signature, request: Any, config: Any) -> requests.Request:
    """Turn a PredictRequest of gRPC into a request for a model.

    Args:
      signature: the signature that the message calls.
      request: the PredictRequest message.
      config: the settings of the server, whose `max_rows` and `max_body_bytes` limit the message.

    Raises:
      UserError: the message does not fit the signature.
    """
    inputs = {}
    for name, proto in request.inputs.items():
        requests.require_input(signature, name)
        inputs[name] = _read_tensor(f"input {name!r}", proto, config.max_body_bytes)
    return requests.make_request(signature, inputs, list(request.output_filter), config.max_rows)


def _read_tensor(where: str, proto: Any, limit: int) -> np.ndarray:
    """Return the array of a TensorProto with at most `limit` values.

    A TensorProto may contain a single value that stands for all values of a large array. Without
    `limit`, a short message with such a single value could require any amount of memory.
    """
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    fits = not proto.tensor_shape.unknown_rank and all(size >= 0 for size in sizes)
    checks.require(fits, where, "have a shape of sizes from 0 on", sizes)
    count = math.prod(sizes)
    checks.require(count <= limit, where, f"have at most {limit} values", count)
    try:
        return _read_values(proto, sizes, count)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())
        checks.fail(where, "be a tensor", f"type {proto.dtype}, shape {sizes}", f"{reason}.")


def _read_values(proto: Any, sizes: Sequence[int], count: int) -> np.ndarray:
    # For texts, `string_val` is faster than `make_ndarray`. But if a message has fewer values than
    # its shape, only `make_ndarray` repeats the last value.
    if proto.dtype == tensors.find_enum(tf.string) and len(proto.string_val) == count:
        array = np.empty(count, object)
        array[:] = list(proto.string_val)
        return array.reshape(sizes)
    return tf.make_ndarray(proto)


def read_examples(message: Any) -> Sequence[bytes]:
    """Return the serialized tf.Examples of an Input message, including features of the context.

    Args:
      message: a message of the type Input from TensorFlow Serving.

    Returns:
      B serialized tf.Examples; empty if the message has no examples.
    """
    if not message.HasField("example_list_with_context"):
        return [example.SerializeToString() for example in message.example_list.examples]
    context = message.example_list_with_context.context.SerializeToString()
    # Concatenated protocol buffers are parsed as one message that has the fields of both messages.
    examples = message.example_list_with_context.examples
    return [context + example.SerializeToString() for example in examples]


def write_tensor(array: np.ndarray, proto: Any) -> None:
    """Fill a TensorProto with the values of an array.

    Args:
      array: an array of any shape; texts are in an array of objects.
      proto: an empty TensorProto, which is filled in place.
    """
    proto.dtype = tensors.find_enum(array.dtype)
    add = proto.tensor_shape.dim.add
    for size in array.shape:
        add(size=size)
    flat, field = array.ravel(), _FIELDS.get(array.dtype)
    if field is not None:
        getattr(proto, field).extend(flat.tolist())
    elif array.dtype.kind in "OSU":
        proto.string_val.extend(map(tf.compat.as_bytes, flat.tolist()))
    else:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()
