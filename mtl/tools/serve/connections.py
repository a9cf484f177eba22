"""Limits the time until the headers of an HTTP request arrive, because aiohttp does not.

runner = web.AppRunner(app)
listener = await loop.create_server(lambda: connections.Connection(runner.server(), secs=30.0))
with connections.answering(request): ...                 # in a middleware
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import cast

from aiohttp import web

# The least number of seconds from the end of an answer until the headers of the next request must
# have arrived.
_GRACE_SECS = 1.0


class Connection(asyncio.Protocol):
    """Forwards the events of a connection to aiohttp; closes connections whose headers are late.

    The timer for the first request starts when the connection opens. The timer for each later
    request starts with its first byte, because aiohttp closes idle connections itself.
    """

    def __init__(self, handler: asyncio.Protocol, secs: float):
        self._handler, self._secs = handler, secs
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_bytes = False
        self._request: web.BaseRequest | None = None
        self._is_answering = False
        # The time at which a request began while the server was still answering the previous
        # request.
        self._early_start: float | None = None

    @contextlib.contextmanager
    def answer(self, request: web.BaseRequest) -> Iterator[None]:
        """Stop the timer, as the headers have arrived; the context lasts until the answer ends."""
        self._stop_timer()
        self._request, self._is_answering = request, True
        try:
            yield
        finally:
            self._is_answering = False
            # The client gets the answer a moment before this context ends, so its next request may
            # have begun already. If the next request is complete, aiohttp starts its answer within
            # `_GRACE_SECS`.
            if self._early_start is not None and self._transport is not None:
                now = asyncio.get_running_loop().time()
                self._start_timer(max(self._early_start, now + _GRACE_SECS - self._secs))
            self._early_start = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer for the headers of the first request."""
        self._transport = cast(asyncio.Transport, transport)
        # Without a write buffer, sending ends only when the client has read all bytes, so the
        # server notices a client that does not read.
        self._transport.set_write_buffer_limits(0)
        self._start_timer(asyncio.get_running_loop().time())
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Start the timer for the headers if a request begins."""
        self._has_bytes = True
        if self._timer is None and self._has_whole_request():
            now = asyncio.get_running_loop().time()
            if not self._is_answering:
                self._start_timer(now)
            elif self._early_start is None:
                self._early_start = now
        self._handler.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer for the headers."""
        self._stop_timer()
        self._transport = None
        self._handler.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Tell aiohttp that the client will send no more data."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """Tell aiohttp to pause writing, because the send buffer is full."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Tell aiohttp to resume writing, because the send buffer has room."""
        self._handler.resume_writing()

    def _has_whole_request(self) -> bool:
        """Return False while incoming bytes may belong to the body of a request."""
        # After an error, the body of the request may still arrive although the answer is already
        # sent.
        return self._request is None or self._request.content.is_eof()

    def _start_timer(self, start: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(start + self._secs, self._end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """Close the connection, after an error message if the client has sent any bytes."""
        if self._transport is None:
            return
        if self._has_bytes:
            problem = f"the headers did not come within {self._secs:g} seconds"
            body = json.dumps({"error": problem}).encode()
            head = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)
        self._transport.close()


def answering(request: web.BaseRequest) -> contextlib.AbstractContextManager[None]:
    """Return a context for answering a request, which stops the timer for the headers."""
    protocol = request.transport and request.transport.get_protocol()
    if isinstance(protocol, Connection):
        return protocol.answer(request)
    return contextlib.nullcontext()  # The client hung up.
