"""Models on a server: TensorFlow Serving's gRPC or REST, or the Open Inference Protocol.

model = remote.connect_server("localhost:8500", protocol.Call(model="income", deadline_secs=5))
call = protocol.Call(model="income", version="canary")
model = remote.connect_server("http://localhost:8501", call)
model = remote.connect_server("http://localhost:8000/v2", call)
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mtl import checks, versions
from mtl.deferred import tf
from mtl.tools.scoring import access, batches, local, open_inference_client, protocol, rest

Result = TypeVar("Result")

# The first wait before another attempt, in seconds; it doubles each time.
_WAIT_SECS = 0.2


class Remote:
    """A signature of a model on a server."""

    def __init__(self, client: protocol.Client, call: protocol.Call, server: str):
        """Ask the server for the model's signatures and its version.

        Raises:
          UserError: the server does not answer, or it has no such model or signature.
        """
        self._client, self._server = client, server
        try:
            found = self._try_again(call, lambda: client.metadata(call))
        except batches.RefusedError as error:
            said = f"--server does not serve {call.model!r}: {error}".rstrip(".")
            raise checks.UserError(f"{said}.") from error
        self._input = local.input_of(call.signature, found.inputs)
        self._outputs = dict(sorted(found.outputs[call.signature].items()))
        rule = "have an output"
        checks.require(bool(self._outputs), "--signature", rule, call.signature)
        # The version stays: a server that loads another one meanwhile would mix predictions of two.
        self._call = call if call.is_label else dataclasses.replace(call, version=found.version)
        self.digest = ""
        # A server of KServe's protocol may have no versions.
        version = f"version {self._call.version} " if self._call.version else ""
        self.identity = f"{call.model} {version}{call.signature}"

    def __call__(self, examples: Sequence[bytes]) -> dict[str, np.ndarray]:
        names = list(self._outputs)
        outputs = self._try_again(
            self._call, lambda: self._client.predict(self._call, self._input, examples, names)
        )
        typed = {name: _type_output(name, outputs, dtype) for name, dtype in self._outputs.items()}
        return local.per_row(typed, len(examples))

    def _try_again(self, call: protocol.Call, attempt: Callable[[], Result]) -> Result:
        for wait in range(call.retries):
            try:
                return attempt()
            except protocol.TransientError:
                # At random, so that clients that failed together do not all come back together.
                time.sleep(_WAIT_SECS * 2**wait * random.uniform(1, 1.5))
        try:
            return attempt()
        except protocol.TransientError as error:
            rule = f"--server must answer within {call.deadline_secs:g} seconds"
            if isinstance(error, protocol.ErrorReplyError):
                rule = "--server must answer without an error"
            tried = f"{call.retries + 1} attempts failed: {error}."
            raise checks.UserError(f"{rule}, got {self._server!r}. {tried}") from error


def _type_output(name: str, outputs: Mapping[str, Any], dtype: tf.DType) -> np.ndarray:
    """Return an output as an array of the type in the server's metadata; fail if it differs."""
    where, rule = f"--server's output {name!r}", f"hold {dtype.name}"
    checks.require(name in outputs, where, rule, None, "It is not in the reply.")
    values = outputs[name]
    # NumPy would turn None into NaN, and "1" into a number.
    array = values if isinstance(values, np.ndarray) else np.array(values, object)
    if array.dtype != object:
        checks.require(tf.as_dtype(array.dtype) == dtype, where, rule, array.dtype.name)
        return array
    kinds = _list_kinds(dtype)
    others = [value for value in array.ravel().tolist() if type(value) not in kinds]
    checks.require(not others, where, rule, next(iter(others), None))
    return _fit_values(array, dtype, where)


def _fit_values(found: np.ndarray, dtype: tf.DType, where: str) -> np.ndarray:
    """Return Python values in the promised type; fail for values out of its range."""
    if dtype == tf.bool or not found.size or not (dtype.is_floating or dtype.is_integer):
        return found.astype(dtype.as_numpy_dtype)
    values = [value for value in found.ravel().tolist() if abs(value) < math.inf]
    for value in (min(values, default=0), max(values, default=0)):
        checks.require(_fits_type(value, dtype), where, f"hold {dtype.name}", value)
    return found.astype(dtype.as_numpy_dtype)


def _fits_type(value: float, dtype: tf.DType) -> bool:
    if dtype.is_integer:
        return dtype.min <= value <= dtype.max
    try:
        # Written in few digits, the largest number is slightly larger, and rounds back.
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(float(value)).astype(dtype.as_numpy_dtype)))
    except OverflowError:
        return False


def _list_kinds(dtype: tf.DType) -> set[type]:
    """Return the types of Python, as JSON gives them, that hold values of a type of TensorFlow."""
    if dtype == tf.string:
        return {bytes}
    if dtype == tf.bool:
        return {bool}
    return {int, float} if dtype.is_floating else {int}


def connect_server(
    server: str, call: protocol.Call, secure: access.Access = access.ANYONE
) -> Remote:
    """Return a model on `server`.

    Args:
      server: HOST:PORT for gRPC, http://HOST:PORT or https://HOST:PORT for REST, the same with /v2
        behind it for the Open Inference Protocol.
      call: the model, and how to call it.
      secure: TLS and token.

    Raises:
      UserError: as `Remote`; or the address is malformed, or packages of gRPC are missing.
    """
    match = re.fullmatch(r"(?:(grpc|http|https)://)?([^/\s]+:[0-9]+)(/v2)?/?", server)
    rule = "be HOST:PORT for gRPC, http://HOST:PORT for REST, or http://HOST:PORT/v2 for KServe"
    if match is None:
        checks.fail("--server", rule, server)
    scheme, address, is_v2 = match.group(1) or "grpc", match.group(2), bool(match.group(3))
    checks.require(not is_v2 or scheme != "grpc", "--server", rule, server)
    _check_address(address, server)
    secure.check(scheme, address)
    return Remote(_client(scheme, address, secure, is_v2), call, server)


def _check_address(address: str, server: str) -> None:
    host, _, port = address.rpartition(":")
    is_port = len(port) < 6 and 0 < int(port) < 2**16
    checks.require(is_port, "--server", "have a port from 1 to 65535", server)
    try:
        host.encode("idna")
    except UnicodeError as error:
        reason = " ".join(str(error).split())
        checks.fail("--server", "name a host", server, f"{reason}.")


def _client(scheme: str, address: str, secure: access.Access, is_v2: bool) -> Any:
    if is_v2:
        return open_inference_client.OpenInference(scheme, address, secure)
    if scheme != "grpc":
        return rest.Rest(scheme, address, secure)
    try:
        from mtl.tools.scoring import grpc_client
    except ImportError as error:
        fix = "Or use its REST port, http://HOST:PORT."
        need = f"{versions.how_to_get('serving')}, as {error.name} is missing"
        raise checks.UserError(f"--server speaks gRPC: {need}. {fix}") from error
    return grpc_client.Grpc(address, secure)
