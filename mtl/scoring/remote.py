"""Models on a server that speaks TensorFlow Serving's protocols, gRPC or REST.

model = remote.connect("localhost:8500", remote.Call(model="income", deadline_secs=5))
model = remote.connect("http://localhost:8501", remote.Call(model="income", version="canary"))
"""

import dataclasses
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from mtl import checks
from mtl.scoring import local

Result = TypeVar("Result")

# The first wait before another attempt; each is twice as long as the one before.
_WAIT_SECS = 0.2


class TransientError(Exception):
    """An attempt failed for a reason that may pass: overload, a restart, the network."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """What is called, and how patiently.

    Attributes:
      model: its name on the server.
      signature: one that takes serialized tf.Examples.
      version: a number, or a label such as canary; "" is the newest when the client connects.
        A number or the newest stays the same for all calls, whatever the server loads meanwhile.
      deadline_secs: how long an attempt may take.
      retries: how often a call is repeated that fails for a reason that may pass, after waits of
        0.2, 0.4, 0.8 ... seconds, each up to half as long again by chance.
    """

    model: str
    signature: str = "serving_default"
    version: str = ""
    deadline_secs: float = 10.0
    retries: int = 4

    def __post_init__(self):
        checks.require(bool(self.model), "--model_name", "name a model of the server", self.model)
        checks.positive("--deadline_secs", self.deadline_secs)
        checks.at_least("--retries", self.retries, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a server says of a model: {signature: {input or output: dtype}}, and its version."""

    version: str
    inputs: Mapping[str, Mapping[str, tf.DType]]
    outputs: Mapping[str, Mapping[str, tf.DType]]


class Client(Protocol):
    """One of the two protocols. Methods raise TransientError, RefusedError or UserError."""

    def metadata(self, call: Call) -> Metadata:
        """What the server says of `call.model`."""

    def predict(
        self, call: Call, input_name: str, examples: Sequence[bytes], outputs: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """The named outputs for serialized tf.Examples [B]."""


class Remote:
    """A signature of a model on a server."""

    def __init__(self, client: Client, call: Call, server: str):
        """Asks the server for the model's signatures and its version.

        Raises:
          UserError: the server does not answer, or it has no such model or signature.
        """
        self._client, self._server = client, server
        found = self._patiently(call, lambda: client.metadata(call))
        self._input = local.input_of(call.signature, found.inputs)
        self._outputs = dict(sorted(found.outputs[call.signature].items()))
        is_label = call.version and not call.version.isdigit()
        self._call = call if is_label else dataclasses.replace(call, version=found.version)
        self.identity = f"{call.model} version {self._call.version} {call.signature}"

    def __call__(self, examples: Sequence[bytes]) -> dict[str, np.ndarray]:
        names = list(self._outputs)
        outputs = self._patiently(
            self._call, lambda: self._client.predict(self._call, self._input, examples, names)
        )
        typed = {name: _typed(name, outputs, dtype) for name, dtype in self._outputs.items()}
        return local.per_row(typed, len(examples))

    def _patiently(self, call: Call, attempt: Callable[[], Result]) -> Result:
        for wait in range(call.retries):
            try:
                return attempt()
            except TransientError:
                time.sleep(_WAIT_SECS * 2**wait * random.uniform(1, 1.5))
        try:
            return attempt()
        except TransientError as error:
            rule = f"--server must answer within {call.deadline_secs:g} seconds"
            tried = f"{call.retries + 1} attempts failed: {error}."
            raise checks.UserError(f"{rule}, got {self._server!r}. {tried}") from error


def _typed(name: str, outputs: Mapping[str, Any], dtype: tf.DType) -> np.ndarray:
    """An output as the array that the server's metadata promise; nothing is made to fit."""
    where, rule = f"--server's output {name!r}", f"hold {dtype.name}"
    checks.require(name in outputs, where, rule, None, "It is not in the reply.")
    values = outputs[name]
    # NumPy would make NaN of None, and a number of the text of one.
    found = values if isinstance(values, np.ndarray) else np.array(values, object)
    if found.dtype != object:
        checks.require(tf.as_dtype(found.dtype) == dtype, where, rule, found.dtype.name)
        return found
    kinds = _kinds(dtype)
    others = [value for value in found.ravel().tolist() if type(value) not in kinds]
    checks.require(not others, where, rule, next(iter(others), None))
    try:
        return found.astype(dtype.as_numpy_dtype)
    except OverflowError:
        checks.fail(where, rule, max(found.ravel().tolist(), key=abs))


def _kinds(dtype: tf.DType) -> set[type]:
    """The types of Python, as JSON gives them, that hold values of a type of TensorFlow."""
    if dtype == tf.string:
        return {bytes}
    if dtype == tf.bool:
        return {bool}
    return {int, float} if dtype.is_floating else {int}


def connect(server: str, call: Call) -> Remote:
    """A model on `server`: HOST:PORT for gRPC, http://HOST:PORT or https:// for REST.

    Raises:
      UserError: as `Remote` does, or the address is none, or gRPC's packages are missing.
    """
    match = re.fullmatch(r"(?:(grpc|http|https)://)?([^/\s]+:\d+)/?", server)
    rule = "be HOST:PORT for gRPC, or http://HOST:PORT for REST"
    checks.require(match is not None, "--server", rule, server)
    scheme, address = match.groups()
    return Remote(_client(scheme or "grpc", address), call, server)


def _client(scheme: str, address: str) -> Any:
    if scheme != "grpc":
        from mtl.scoring import rest

        return rest.Rest(scheme, address)
    try:
        from mtl.scoring import grpc_client
    except ImportError as error:
        fix = "Or use its REST port, http://HOST:PORT."
        need = f"pip install 'mtl[serving]', as {error.name} is missing"
        raise checks.UserError(f"--server speaks gRPC: {need}. {fix}") from error
    return grpc_client.Grpc(address)
