"""TensorFlow Serving's REST interface.

client = rest.Rest("http", "localhost:8501")
client.predict(remote.Call(model="income"), "examples", [example], ["income/probability"])
"""

import base64
import http.client
import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from mtl import checks
from mtl.scoring import batches, remote

Result = TypeVar("Result")

_DATA_TYPES = tf.compat.v1.AttrValue.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
_TRANSIENT = {408, 429, 500, 502, 503, 504}


class Rest:
    """A `remote.Client`."""

    def __init__(self, scheme: str, address: str):
        self._connection, self._address = _CONNECTIONS[scheme], address

    def metadata(self, call: remote.Call) -> remote.Metadata:
        return self._answer("GET", f"{_path(call)}/metadata", None, call, _metadata)

    def predict(
        self, call: remote.Call, input_name: str, examples: Sequence[bytes], outputs: Sequence[str]
    ) -> dict[str, np.ndarray]:
        encoded = [{"b64": base64.b64encode(example).decode()} for example in examples]
        request = {"signature_name": call.signature, "inputs": {input_name: encoded}}

        def read(answer: Any) -> dict[str, Any]:
            found = answer["outputs"]
            # Of a signature with one output the server gives the bare value.
            found = found if isinstance(found, dict) else dict.fromkeys(outputs[:1], found)
            return {name: _decoded(values) for name, values in found.items()}

        return self._answer("POST", f"{_path(call)}:predict", request, call, read)

    def _answer(
        self,
        method: str,
        path: str,
        request: Any,
        call: remote.Call,
        read: Callable[[Any], Result],
    ) -> Result:
        connection = self._connection(self._address, timeout=call.deadline_secs)
        body = None if request is None else json.dumps(request)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise remote.TransientError(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if response.status != 200:
            raise _failure(response.status, _reason(text), call)
        try:
            return read(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            rule = f"answer {path} as TensorFlow Serving does"
            given = text[:100].decode(errors="replace")
            raise checks.UserError(f"--server must {rule}, got {given!r}.") from error


def _metadata(answer: Any) -> remote.Metadata:
    signatures = answer["metadata"]["signature_def"]["signature_def"].items()
    return remote.Metadata(
        version=answer["model_spec"]["version"],
        inputs={name: _types(signature["inputs"]) for name, signature in signatures},
        outputs={name: _types(signature["outputs"]) for name, signature in signatures},
    )


def _failure(status: int, reason: str, call: remote.Call) -> Exception:
    if status in _TRANSIENT:
        return remote.TransientError(f"HTTP {status} {reason}".strip(". "))
    if status == 400:
        return batches.RefusedError(reason)
    return checks.UserError(f"--server does not serve {call.model!r}: HTTP {status} {reason}")


def _path(call: remote.Call) -> str:
    path = f"/v1/models/{urllib.parse.quote(call.model)}"
    if not call.version:
        return path
    kind = "versions" if call.version.isdigit() else "labels"
    return f"{path}/{kind}/{urllib.parse.quote(call.version)}"


def _types(tensors: Mapping[str, Any]) -> dict[str, tf.DType]:
    return {name: tf.as_dtype(_DATA_TYPES[info["dtype"]].number) for name, info in tensors.items()}


def _reason(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")[:200]


def _decoded(values: Any) -> Any:
    """Strings come as {"b64": ...} where a name ends in "_bytes", else as text."""
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    if isinstance(values, dict):
        return base64.b64decode(values["b64"])
    return values.encode() if isinstance(values, str) else values
