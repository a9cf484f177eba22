"""Calls a server by TensorFlow Serving's REST interface.

client = rest.Rest("http", "localhost:8501", access.ANYONE)
client.predict(protocol.Call(model="income"), "examples", [example], ["income/probability"])
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.tools.scoring import access, http_calls, protocol

Result = TypeVar("Result")


class Rest:
    """A client of TensorFlow Serving's REST interface; implements `protocol.Client`."""

    def __init__(self, scheme: str, address: str, secure: access.Access):
        self._http = http_calls.Http(scheme, address, secure)

    def metadata(self, call: protocol.Call) -> protocol.Metadata:
        return self._ask_server("GET", f"{_make_path(call)}/metadata", None, call, _read_metadata)

    def predict(
        self,
        call: protocol.Call,
        input_name: str,
        examples: Sequence[bytes],
        outputs: Sequence[str],
    ) -> dict[str, np.ndarray]:
        # JSON cannot hold bytes, so TensorFlow Serving expects bytes in base64.
        encoded = [{"b64": base64.b64encode(example).decode()} for example in examples]
        request = {"signature_name": call.signature, "inputs": {input_name: encoded}}

        def read(answer: Any) -> dict[str, Any]:
            arrays_by_name = answer["outputs"]
            # If a signature has one output, the server sends the values of this output without the
            # output's name.
            arrays_by_name = (
                arrays_by_name
                if isinstance(arrays_by_name, dict)
                else dict.fromkeys(outputs[:1], arrays_by_name)
            )
            return {name: _decode_values(values) for name, values in arrays_by_name.items()}

        return self._ask_server("POST", f"{_make_path(call)}:predict", request, call, read)

    def _ask_server(
        self,
        method: str,
        path: str,
        request: Any,
        call: protocol.Call,
        read: Callable[[Any], Result],
    ) -> Result:
        body = None if request is None else json.dumps(request).encode()
        reply = self._http.exchange(method, path, body, call)
        try:
            return read(json.loads(reply.body))
        except http_calls.MALFORMED as error:
            rule = f"answer {path} as TensorFlow Serving does"
            beginning = reply.body[:100].decode(errors="replace")
            raise checks.UserError(f"--server must {rule}, got {beginning!r}.") from error


def _read_metadata(answer: Any) -> protocol.Metadata:
    signatures = answer["metadata"]["signature_def"]["signature_def"].items()
    return protocol.Metadata(
        version=_read_version(answer["model_spec"]["version"]),
        inputs={name: _read_types(signature["inputs"]) for name, signature in signatures},
        outputs={name: _read_types(signature["outputs"]) for name, signature in signatures},
    )


def _read_version(value: Any) -> str:
    if not re.fullmatch("[0-9]{1,19}", str(value)):
        raise ValueError
    return str(value)


def _make_path(call: protocol.Call) -> str:
    path = f"/v1/models/{urllib.parse.quote(call.model, safe='')}"
    if not call.version:
        return path
    kind = "labels" if call.is_label else "versions"
    return f"{path}/{kind}/{urllib.parse.quote(call.version, safe='')}"


def _read_types(tensors: Mapping[str, Any]) -> dict[str, tf.DType]:
    kinds = tf1.AttrValue.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name
    return {name: tf.as_dtype(kinds[info["dtype"]].number) for name, info in tensors.items()}


def _decode_values(values: Any) -> Any:
    """Turn the texts in a JSON answer into bytes; a text may be plain or {"b64": ...}."""
    if isinstance(values, list):
        return [_decode_values(value) for value in values]
    if isinstance(values, dict):
        return base64.b64decode(values["b64"], validate=True)
    return values.encode() if isinstance(values, str) else values
