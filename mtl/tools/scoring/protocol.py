"""Calls of a server, its metadata of a model, and the interface of clients.

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
    """An attempt failed for a reason that may pass: overload, a restart, the network."""


class ErrorReplyError(TransientError):
    """The server has answered that it failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """The model to call, with time limit and retries.

    Attributes:
      model: its name on the server.
      signature: one that takes serialized tf.Examples.
      version: a number, or a label such as canary; "" is the newest when the client connects.
        A number or the newest stays the same for all calls, whatever the server loads meanwhile.
      deadline_secs: the time limit of an attempt, from the first byte sent to the last received.
      retries: the number of repetitions after failures that may pass. The waits are 0.2, 0.4, 0.8
        ... seconds, each randomly lengthened by up to a half.
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
        fits = self.is_label or int(self.version or 0) < 2**63
        checks.require(fits, "--model_version", "be a label or below 2^63", self.version)
        checks.positive("--deadline_secs", self.deadline_secs)
        is_bound = self.deadline_secs <= _MOST_SECS
        checks.require(is_bound, "--deadline_secs", f"be at most {_MOST_SECS}", self.deadline_secs)
        checks.at_least("--retries", self.retries, 0)

    @property
    def is_label(self) -> bool:
        """True if the version is a label."""
        return bool(self.version) and not re.fullmatch("[0-9]+", self.version)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """A server's metadata of a model: {signature: {input or output: dtype}} and its version."""

    version: str
    inputs: Mapping[str, Mapping[str, tf.DType]]
    outputs: Mapping[str, Mapping[str, tf.DType]]


class Client(Protocol):
    """One of the protocols. Methods raise TransientError, RefusedError or UserError."""

    def metadata(self, call: Call) -> Metadata:
        """Return the server's metadata of `call.model`."""

    def predict(
        self, call: Call, input_name: str, examples: Sequence[bytes], outputs: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return the named outputs for serialized tf.Examples [B].

        Args:
          call: the model, with the time limit of an attempt.
          input_name: the input that takes tf.Examples.
          examples: serialized tf.Examples [B].
          outputs: the names of the outputs.

        Returns:
          {output: [B, ...]}.
        """
