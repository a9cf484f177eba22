"""TensorFlow Serving's REST interface.

client = rest.Rest("http", "localhost:8501", access.ANYONE)
client.predict(protocol.Call(model="income"), "examples", [example], ["income/probability"])
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import re
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.scoring import access, batches, deadlines, protocol

Result = TypeVar("Result")

# Errors of unexpected JSON; the last one for lists that are nested too deeply.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_TRANSIENT = {408, 429, 500, 502, 503, 504}


class Rest:
    """A `protocol.Client`."""

    def __init__(self, scheme: str, address: str, secure: access.Access):
        self._secure = secure
        self._connection = functools.partial(http.client.HTTPConnection, address)
        if scheme == "https":
            self._connection = functools.partial(
                http.client.HTTPSConnection, address, context=secure.context()
            )

    def metadata(self, call: protocol.Call) -> protocol.Metadata:
        return self._answer("GET", f"{_path(call)}/metadata", None, call, _metadata)

    def predict(
        self,
        call: protocol.Call,
        input_name: str,
        examples: Sequence[bytes],
        outputs: Sequence[str],
    ) -> dict[str, np.ndarray]:
        encoded = [{"b64": base64.b64encode(example).decode()} for example in examples]
        request = {"signature_name": call.signature, "inputs": {input_name: encoded}}

        def read(answer: Any) -> dict[str, Any]:
            found = answer["outputs"]
            # For a signature with one output the server sends the bare value.
            found = found if isinstance(found, dict) else dict.fromkeys(outputs[:1], found)
            return {name: _decoded(values) for name, values in found.items()}

        return self._answer("POST", f"{_path(call)}:predict", request, call, read)

    def _answer(
        self,
        method: str,
        path: str,
        request: Any,
        call: protocol.Call,
        read: Callable[[Any], Result],
    ) -> Result:
        status, text = self._exchange(method, path, request, call)
        if status != 200:
            raise _failure(status, _reason(text), call)
        try:
            return read(json.loads(text))
        except _MALFORMED as error:
            rule = f"answer {path} as TensorFlow Serving does"
            given = text[:100].decode(errors="replace")
            raise checks.UserError(f"--server must {rule}, got {given!r}.") from error

    def _exchange(
        self, method: str, path: str, request: Any, call: protocol.Call
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        connection = self._connection(timeout=call.deadline_secs)
        body = None if request is None else json.dumps(request)
        headers = {"Content-Type": "application/json", **self._secure.headers()}

        def ask() -> tuple[int, bytes]:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

        try:
            return deadlines.run_within(call.deadline_secs, ask, lambda: _cut(connection))
        except ssl.SSLCertVerificationError as error:
            fix = "Is --ca_file the authority that signed it?"
            reason = error.verify_message.strip(". ")
            raise checks.UserError(
                f"--server must have a certificate that can be trusted: {reason}. {fix}"
            ) from error
        # The last two if the header announces an impossible number of bytes.
        except (OSError, http.client.HTTPException, OverflowError, MemoryError) as error:
            raise protocol.TransientError(_one_line(error)) from error
        finally:
            connection.close()


def _cut(connection: http.client.HTTPConnection) -> None:
    """Wake the thread that reads from the connection."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _metadata(answer: Any) -> protocol.Metadata:
    signatures = answer["metadata"]["signature_def"]["signature_def"].items()
    return protocol.Metadata(
        version=_version(answer["model_spec"]["version"]),
        inputs={name: _types(signature["inputs"]) for name, signature in signatures},
        outputs={name: _types(signature["outputs"]) for name, signature in signatures},
    )


def _version(value: Any) -> str:
    if not re.fullmatch("[0-9]{1,19}", str(value)):
        raise ValueError
    return str(value)


def _failure(status: int, reason: str, call: protocol.Call) -> Exception:
    if status in _TRANSIENT:
        return protocol.TransientError(f"HTTP {status} {reason}".strip(". "))
    if status == 400:
        return batches.RefusedError(reason)
    return checks.UserError(f"--server does not serve {call.model!r}: HTTP {status} {reason}")


def _path(call: protocol.Call) -> str:
    path = f"/v1/models/{urllib.parse.quote(call.model, safe='')}"
    if not call.version:
        return path
    kind = "labels" if call.is_label else "versions"
    return f"{path}/{kind}/{urllib.parse.quote(call.version, safe='')}"


def _types(tensors: Mapping[str, Any]) -> dict[str, tf.DType]:
    kinds = tf1.AttrValue.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name
    return {name: tf.as_dtype(kinds[info["dtype"]].number) for name, info in tensors.items()}


def _reason(text: bytes) -> str:
    try:
        said = str(json.loads(text)["error"])
    except _MALFORMED:
        said = text.decode(errors="replace")[:200]
    return " ".join(said.split())


def _decoded(values: Any) -> Any:
    """Decode strings: {"b64": ...} if an output's name ends in "_bytes", else text."""
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    if isinstance(values, dict):
        return base64.b64decode(values["b64"], validate=True)
    return values.encode() if isinstance(values, str) else values
