"""Defines the interface of clients that call a model on a server.

call = protocol.Call(model="income", version="canary", deadline_secs=5)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from mtl import checks
from mtl.deferred import tf

_MOST_SECS = 10**6


class TransientError(Exception):
    """An attempt failed for a temporary reason, such as overload, a restart or the network."""


class ErrorReplyError(TransientError):
    """The server has answered with a temporary error, such as the HTTP status 503."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Describes the calls of a model on a server, with their time limit and retries.

    Attributes:
      model: the name of the model on the server.
      signature: the name of a signature that takes serialized tf.Examples.
      version: a number, or a label such as canary; "" for the newest version. Unless the version is
        a label, all calls use the same version, even if the server loads a newer version meanwhile.
      deadline_secs: the time limit of an attempt in seconds, from the first byte of the request to
        the last byte of the answer.
      retries: the number of further attempts after temporary failures. The waits between attempts
        are 0.2, 0.4, 0.8 ... seconds, times a random factor from 1 to 1.5.
    """

    model: str
    signature: str = "serving_default"
    version: str = ""
    deadline_secs: float = 10.0
    retries: int = 4

    def __post_init__(self):
        for flag, text in (("model_name", self.model), ("model_version", self.version)):
            is_text = not re.search("[\ud800-\udfff]", text)
            checks.require(is_text, f"--{flag}", "be text", text)
        checks.require(bool(self.model), "--model_name", "name a model of the server", self.model)
        # Check the number of digits first, because Python refuses to convert thousands of digits.
        fits = self.is_label or (len(self.version) < 20 and int(self.version or 0) < 2**63)
        checks.require(fits, "--model_version", "be a label or below 2^63", self.version)
        checks.positive("--deadline_secs", self.deadline_secs)
        is_bound = self.deadline_secs <= _MOST_SECS
        checks.require(is_bound, "--deadline_secs", f"be at most {_MOST_SECS}", self.deadline_secs)
        checks.at_least("--retries", self.retries, 0)

    @property
    def is_label(self) -> bool:
        """True if the version is a label, such as canary, instead of a number."""
        return bool(self.version) and not re.fullmatch("[0-9]+", self.version)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """The metadata that a server has about a model.

    Attributes:
      version: the version of the model.
      inputs: {signature: {input: type}}.
      outputs: {signature: {output: type}}.
    """

    version: str
    inputs: Mapping[str, Mapping[str, tf.DType]]
    outputs: Mapping[str, Mapping[str, tf.DType]]


class Client(Protocol):
    """A client of a protocol. All methods may raise TransientError, RefusedError or UserError."""

    def metadata(self, call: Call) -> Metadata:
        """Return the server's metadata of `call.model`."""

    def predict(
        self, call: Call, input_name: str, examples: Sequence[bytes], outputs: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return outputs of the model for serialized tf.Examples.

        Args:
          call: the settings of the call, with the name of the model and the time limit of an
            attempt.
          input_name: the name of the input that takes serialized tf.Examples.
          examples: B serialized tf.Examples.
          outputs: the names of the outputs to return.

        Returns:
          {output: [B, ...]}.
        """
