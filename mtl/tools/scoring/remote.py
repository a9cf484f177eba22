"""Calls a model on a server, by TensorFlow Serving's gRPC or REST or the Open Inference Protocol.

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

# The wait before the second attempt, in seconds. The wait doubles with each further attempt.
_WAIT_SECS = 0.2


class Remote:
    """Computes predictions with a signature of a model on a server."""

    def __init__(self, client: protocol.Client, call: protocol.Call, server: str):
        """Ask the server for the signatures and the version of the model.

        Args:
          client: the client of the server.
          call: the name of the model, with the time limit and the number of retries.
          server: the address of the server in error messages.

        Raises:
          UserError: the server does not answer, or does not have the model or signature.
        """
        self._client, self._server = client, server
        try:
            metadata = self._try_again(call, lambda: client.metadata(call))
        except batches.RefusedError as error:
            problem = f"--server does not serve {call.model!r}: {error}".rstrip(".")
            raise checks.UserError(f"{problem}.") from error
        self._input = local.input_of(call.signature, metadata.inputs)
        self._outputs = dict(sorted(metadata.outputs[call.signature].items()))
        rule = "have an output"
        checks.require(bool(self._outputs), "--signature", rule, call.signature)
        # Always call the same version. Without a fixed version, predictions would come from two
        # versions if the server loads a new version meanwhile.
        self._call = call if call.is_label else dataclasses.replace(call, version=metadata.version)
        self.digest = ""
        # With the Open Inference Protocol, a model may lack a version.
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
                # Wait for a random time, so that clients that failed together do not all try again
                # at the same time.
                time.sleep(_WAIT_SECS * 2**wait * random.uniform(1, 1.5))
        try:
            return attempt()
        except protocol.TransientError as error:
            rule = f"--server must answer within {call.deadline_secs:g} seconds"
            if isinstance(error, protocol.ErrorReplyError):
                rule = "--server must answer without an error"
            attempts = f"{call.retries + 1} attempts failed: {error}."
            raise checks.UserError(f"{rule}, got {self._server!r}. {attempts}") from error


def _type_output(name: str, outputs: Mapping[str, Any], dtype: tf.DType) -> np.ndarray:
    """Return an output as an array; fail if its type differs from the server's metadata."""
    where, rule = f"--server's output {name!r}", f"hold {dtype.name}"
    checks.require(name in outputs, where, rule, None, "The reply lacks the output.")
    values = outputs[name]
    # Make an array of objects, so that the code below can check the type of each value: NumPy would
    # turn None into NaN, and "1" into 1.
    array = values if isinstance(values, np.ndarray) else np.array(values, object)
    if array.dtype != object:
        checks.require(tf.as_dtype(array.dtype) == dtype, where, rule, array.dtype.name)
        return array
    kinds = _list_kinds(dtype)
    misfits = [value for value in array.ravel().tolist() if type(value) not in kinds]
    checks.require(not misfits, where, rule, next(iter(misfits), None))
    return _fit_values(array, dtype, where)


def _fit_values(array: np.ndarray, dtype: tf.DType, where: str) -> np.ndarray:
    """Convert an array of Python values to a type; fail if a value is out of the type's range."""
    if dtype == tf.bool or not array.size or not (dtype.is_floating or dtype.is_integer):
        return array.astype(dtype.as_numpy_dtype)
    values = [value for value in array.ravel().tolist() if abs(value) < math.inf]
    for value in (min(values, default=0), max(values, default=0)):
        checks.require(_fits_type(value, dtype), where, f"hold {dtype.name}", value)
    return array.astype(dtype.as_numpy_dtype)


def _fits_type(value: float, dtype: tf.DType) -> bool:
    if dtype.is_integer:
        return dtype.min <= value <= dtype.max
    try:
        # Rounding to few digits in JSON may make the largest number of a type slightly too large.
        # Converting such a number to the type rounds it down to the largest number again, so check
        # the converted value.
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(float(value)).astype(dtype.as_numpy_dtype)))
    except OverflowError:
        return False


def _list_kinds(dtype: tf.DType) -> set[type]:
    """Return the Python types that JSON uses for values of a TensorFlow type."""
    if dtype == tf.string:
        return {bytes}
    if dtype == tf.bool:
        return {bool}
    return {int, float} if dtype.is_floating else {int}


def connect_server(
    server: str, call: protocol.Call, secure: access.Access = access.ANYONE
) -> Remote:
    """Connect to a model on a server.

    Args:
      server: HOST:PORT for gRPC, http://HOST:PORT or https://HOST:PORT for REST; with /v2 after the
        port for the Open Inference Protocol.
      call: the name of the model, with the time limit and the number of retries.
      secure: the settings of TLS and of the token.

    Raises:
      UserError: the address is malformed, packages for gRPC are missing, or the server does not
        answer or does not have the model or signature.
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
        fix = "Or use the server's REST port, http://HOST:PORT."
        need = f"{versions.how_to_get('serving')}, as {error.name} is missing"
        raise checks.UserError(f"--server speaks gRPC: {need}. {fix}") from error
    return grpc_client.Grpc(address, secure)
