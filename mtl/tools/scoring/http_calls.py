"""Sends HTTP requests with a time limit, and explains failures.

http = http_calls.Http("http", "localhost:8501", access.ANYONE)
reply = http.exchange("POST", "/v1/models/income:predict", body, call)
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from mtl import checks
from mtl.tools.scoring import access, batches, deadlines, protocol

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors that unexpected JSON raises, such as RecursionError for deeply nested lists."""

_TRANSIENT = {408, 429, 500, 502, 503, 504}


class Reply(NamedTuple):
    """The answer to a request that succeeded.

    Attributes:
      body: the body of the answer.
      headers: the headers of the answer, with names in lower case.
    """

    body: bytes
    headers: Mapping[str, str]


class Http:
    """Sends HTTP requests to a server."""

    def __init__(self, scheme: str, address: str, secure: access.Access):
        self._secure = secure
        self._connection = functools.partial(http.client.HTTPConnection, address)
        if scheme == "https":
            self._connection = functools.partial(
                http.client.HTTPSConnection, address, context=secure.context()
            )

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        call: protocol.Call,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request, and return the answer.

        Args:
          method: "GET" or "POST".
          path: the path in the URL.
          body: the bytes to send; None to send nothing.
          call: the settings of the call: its time limit, and the name of the model for error
            messages.
          headers: further headers, such as a content type other than JSON.

        Raises:
          TransientError: the attempt failed for a temporary reason.
          RefusedError: the server refuses the values in the request.
          UserError: the server answers with another error, or the client does not trust its
            certificate.
        """
        connection = self._connection(timeout=call.deadline_secs)
        sent_headers = {
            "Content-Type": "application/json",
            **(headers or {}),
            **self._secure.headers(),
        }

        def ask() -> tuple[int, Reply]:
            connection.request(method, path, body, sent_headers)
            response = connection.getresponse()
            received_headers = {name.lower(): value for name, value in response.getheaders()}
            return response.status, Reply(response.read(), received_headers)

        try:
            status, reply = deadlines.run_within(
                call.deadline_secs, ask, lambda: _cut_connection(connection)
            )
        except ssl.SSLCertVerificationError as error:
            fix = "Is --ca_file the authority that signed the certificate?"
            reason = error.verify_message.strip(". ")
            raise checks.UserError(
                f"--server must have a certificate that can be trusted: {reason}. {fix}"
            ) from error
        # OverflowError and MemoryError occur if the header Content-Length is far too large.
        except (OSError, http.client.HTTPException, OverflowError, MemoryError) as error:
            raise protocol.TransientError(_one_line(error)) from error
        finally:
            connection.close()
        if status != 200:
            raise _explain_failure(status, _read_reason(reply.body), call)
        return reply


def _cut_connection(connection: http.client.HTTPConnection) -> None:
    """Shut a connection down, so that the thread that reads from it ends."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            # `close` alone does not wake a thread that waits in `recv`.
            connection.sock.shutdown(socket.SHUT_RDWR)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _explain_failure(status: int, reason: str, call: protocol.Call) -> Exception:
    if status in _TRANSIENT:
        return protocol.ErrorReplyError(f"HTTP {status} {reason}".strip(". "))
    # For wrong values, TensorFlow Serving answers with the status 400, and MLServer with 422.
    if status in (400, 422):
        return batches.RefusedError(reason)
    return checks.UserError(f"--server does not serve {call.model!r}: HTTP {status} {reason}")


def _read_reason(text: bytes) -> str:
    try:
        reason = str(json.loads(text)["error"])
    except MALFORMED:
        reason = text.decode(errors="replace")[:200]
    return " ".join(reason.split())
