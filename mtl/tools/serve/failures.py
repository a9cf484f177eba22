"""Lists how a request can fail, with the codes of HTTP and gRPC.

raise failures.RequestError(failures.NOT_FOUND, "no model 'x' is served")
"""

from __future__ import annotations

from typing import NamedTuple

from mtl import checks
from mtl.data import source


class Kind(NamedTuple):
    """A kind of failure.

    Attributes:
      name: the name of the gRPC code.
      status: the HTTP status that TensorFlow Serving uses for the gRPC code.
    """

    name: str
    status: int


INVALID = Kind("INVALID_ARGUMENT", 400)
UNAUTHENTICATED = Kind("UNAUTHENTICATED", 401)
NOT_FOUND = Kind("NOT_FOUND", 404)
TOO_LARGE = Kind("RESOURCE_EXHAUSTED", 413)
INTERNAL = Kind("INTERNAL", 500)
BUSY = Kind("UNAVAILABLE", 503)
LATE = Kind("DEADLINE_EXCEEDED", 504)


class RequestError(Exception):
    """A request that is answered with an error.

    The error message may quote the request, so line ends are escaped and secrets are masked.
    """

    def __init__(self, kind: Kind, message: str):
        # `UserError` escapes line ends, masks secrets, and shortens long messages.
        super().__init__(str(checks.UserError(message)))
        self.kind = kind


def explain_failure(error: BaseException) -> RequestError | None:
    """Return the error to send to a client after an exception.

    Args:
      error: an exception that occurred while the server answered a request.

    Returns:
      The same error for a RequestError; a RequestError of the kind INVALID for a UserError or for
      values that TensorFlow refuses; a RequestError of the kind LATE for a TimeoutError; and None
      for all other exceptions, which are faults of the server.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, checks.UserError):
        return RequestError(INVALID, str(error))
    if isinstance(error, source.list_refusals()):
        return RequestError(INVALID, source.explain_unreadable(error))
    if isinstance(error, TimeoutError):
        return RequestError(LATE, str(error) or "the request has timed out")
    return None
