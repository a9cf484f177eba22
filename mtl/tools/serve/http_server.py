"""Serves HTTP: checks tokens, reads bodies, calls handlers, and answers errors as JSON.

This module uses aiohttp, because aiohttp is one package with a parser in C, limits the size of
bodies, cancels the work for a client that hangs up, and runs in the event loop of gRPC. Starlette
would need Uvicorn, which handles signals itself and does not limit the size of bodies. Tornado
parses requests in Python, and continues the work for a client that hangs up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import numpy as np
from aiohttp import web

import mtl
from mtl import checks
from mtl.tools.serve import (
    connections,
    engine,
    examples,
    failures,
    metrics,
    models,
    open_inference,
    requests,
    rest,
    tensors,
)

_log = logging.getLogger("mtl.tools.serve")

METRICS = "/monitoring/prometheus/metrics"
EXAMPLE = "/example"
_V1, _V2 = "/v1/models/{model:[^/:]+}", "/v2/models/{model:[^/]+}"
_VERSION = "/versions/{version:[^/:]+}"
# Requests to these paths need no token, because probes of Kubernetes do not send tokens.
_OPEN = ("/v2/health/live", "/v2/health/ready")
_JSON = "application/json"
# The number of connections that may wait for the event loop. If more connections wait, the
# operating system refuses them.
_BACKLOG = 128
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Outputs = Mapping[str, np.ndarray]
_SLOW_BODY = failures.Kind("DEADLINE_EXCEEDED", 408)
_NO_METHOD = failures.Kind("UNIMPLEMENTED", 405)


class HttpServer:
    """Serves REST, the Open Inference Protocol and metrics."""

    def __init__(self, core: engine.Engine):
        self._engine, self._settings = core, core.settings
        limit = core.settings.max_body_bytes
        self._app = web.Application(middlewares=[self._answer_request], client_max_size=limit)
        self._app.add_routes(self._list_routes())
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    def _list_routes(self) -> list[web.RouteDef]:
        get, post = web.get, web.post
        routes = [
            get(METRICS, self._metrics),
            get(EXAMPLE, self._example),
            get("/v2", self._server),
            get("/v2/health/live", self._live),
            get("/v2/health/ready", self._ready),
        ]
        for version in ("", _VERSION):
            routes += [
                get(f"{_V1}{version}", self._status),
                get(f"{_V1}{version}/metadata", self._metadata),
                post(f"{_V1}{version}:predict", self._predict),
                post(f"{_V1}{version}:classify", self._classify),
                post(f"{_V1}{version}:regress", self._regress),
                get(f"{_V2}{version}", self._model),
                get(f"{_V2}{version}/ready", self._model_ready),
                post(f"{_V2}{version}/infer", self._infer),
            ]
        return routes

    async def start(self, context: ssl.SSLContext | None) -> int:
        """Start to listen.

        Args:
          context: the TLS context; None for plain HTTP.

        Returns:
          The port.

        Raises:
          OSError: the address cannot be used.
        """
        config = self._settings
        self._runner = web.AppRunner(
            self._app,
            access_log=None,
            # By default, aiohttp continues the work for a client that hangs up.
            handler_cancellation=True,
            shutdown_timeout=config.drain_secs,
            keepalive_timeout=75.0,
        )
        await self._runner.setup()
        handlers = cast(web.Server, self._runner.server)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: connections.Connection(handlers(), config.timeout_secs),
            config.host,
            config.rest_port,
            backlog=_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=config.timeout_secs if context else None,
        )
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Accept no more connections, and wait for the running requests."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _answer_request(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer a request: check its token, call its handler, and turn exceptions into answers.

        The server's metrics count every request. The connection ends if the answer is not sent in
        time.
        """
        protocol = "open_inference" if request.path.startswith("/v2") else "rest"
        measurement = self._engine.metrics.measure(protocol, _name_method(request))
        with connections.answering(request), measurement as outcome:
            try:
                if request.path not in _OPEN:
                    self._engine.guard.require(request.headers.get("Authorization"))
                response = await handler(request)
                # Only the readiness probes return an error status without an exception: 503.
                code = "OK" if response.status < 400 else "UNAVAILABLE"
            # If the client hangs up, CancelledError is not caught: the request counts as CANCELLED.
            except Exception as error:
                failure = self._explain_error(request, error)
                code, response = failure.kind.name, _write_failure(failure)
                if request.content.exception() is not None:
                    # Mark the body of the request as complete: the rest of the body cannot be read,
                    # and aiohttp would log a traceback.
                    request.content.feed_eof()
                    response.force_close()
            await self._send_response(request, response)
            outcome.code = code
            return response

    def _explain_error(self, request: web.Request, error: Exception) -> failures.RequestError:
        failure = failures.explain_failure(error)
        if failure is not None:
            return failure
        if isinstance(error, web.HTTPRequestEntityTooLarge):
            return _too_large(self._settings.max_body_bytes)
        if isinstance(error, web.HTTPMethodNotAllowed):
            methods = ", ".join(sorted(error.allowed_methods - {"HEAD"}))
            problem = f"{request.path} takes {methods}, got {request.method}"
            return failures.RequestError(_NO_METHOD, problem)
        if isinstance(error, web.HTTPNotFound):
            return failures.RequestError(failures.NOT_FOUND, self._explain_path(request.path))
        if isinstance(error, web.HTTPException):
            kind = failures.Kind("INVALID_ARGUMENT", error.status)
            return failures.RequestError(kind, error.reason)
        _log.error("A request to %s failed.", request.path, exc_info=error)
        return failures.RequestError(
            failures.INTERNAL, f"the server failed: {type(error).__name__}"
        )

    def _explain_path(self, path: str) -> str:
        name = self._engine.name
        paths = [METRICS, EXAMPLE, "/v2", *_OPEN, f"/v1/models/{name}", f"/v2/models/{name}"]
        paths += [f"/v1/models/{name}{end}" for end in (":predict", ":classify", ":regress")]
        paths += [f"/v1/models/{name}/metadata", f"/v2/models/{name}/infer"]
        if "/labels/" in path:
            return "labels such as 'stable' need TensorFlow Serving; name a version"
        return f"nothing is at {path!r}. {checks.nearest(path, paths)}".rstrip()

    async def _send_response(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send an answer; abort the connection if the client does not read the answer in time."""
        await response.prepare(request)
        try:
            await asyncio.wait_for(response.write_eof(), self._settings.timeout_secs)
        except asyncio.TimeoutError as error:
            if request.transport is not None:
                # Unlike `abort`, `close` would wait until all data is sent.
                request.transport.abort()
            raise ConnectionResetError("the client does not read") from error

    async def _read(self, request: web.Request) -> bytes:
        limit, secs = self._settings.max_body_bytes, self._settings.timeout_secs
        # If the header Content-Length is too large, refuse the body without reading it. Without
        # Content-Length, aiohttp counts the bytes.
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        try:
            return await asyncio.wait_for(request.read(), secs)
        except asyncio.TimeoutError as error:
            problem = f"the body did not come within {secs:g} seconds"
            raise failures.RequestError(_SLOW_BODY, problem) from error
        except web.RequestPayloadError as error:
            encoding = request.headers.get("Content-Encoding", "none")
            problem = f"the body cannot be read with the Content-Encoding {encoding!r}"
            raise failures.RequestError(failures.INVALID, problem) from error

    def _find_version(self, request: web.Request) -> int | None:
        """Return the version in the path of a request; None if the path names no version."""
        self._engine.require_model(request.match_info["model"])
        version = request.match_info.get("version")
        if version is None:
            return None
        is_number = version.isdecimal() and version.isascii() and len(version) < 20
        checks.require(is_number, "a version", "be a number", version)
        return int(version)

    async def _status(self, request: web.Request) -> web.Response:
        states = self._engine.versions.select_states(self._find_version(request))
        return _write_json(rest.write_message(rest.describe_status(states)))

    async def _metadata(self, request: web.Request) -> web.Response:
        with self._engine.versions.lease(self._find_version(request)) as model:
            return _write_json(rest.write_metadata(model))

    async def _predict(self, request: web.Request) -> web.Response:
        is_by_row = False

        def parse(model: models.Model, document: dict[str, Any]) -> requests.Request:
            nonlocal is_by_row
            is_by_row = rest.is_by_row(document)
            return rest.read_predict(model, document, self._settings.max_rows)

        return await self._call(
            request, parse, lambda outputs: rest.write_predict(outputs, is_by_row)
        )

    async def _classify(self, request: web.Request) -> web.Response:
        return await self._call_examples(request, models.CLASSIFY, rest.write_classes)

    async def _regress(self, request: web.Request) -> web.Response:
        return await self._call_examples(request, models.REGRESS, rest.write_values)

    async def _call_examples(
        self, request: web.Request, method: str, write: Callable[[_Outputs], str]
    ) -> web.Response:
        limit = self._settings.max_rows
        parse = lambda model, document: rest.read_examples(model, document, method, limit)  # noqa: E731
        return await self._call(request, parse, write)

    async def _call(
        self,
        request: web.Request,
        parse: Callable[[models.Model, dict[str, Any]], requests.Request],
        write: Callable[[_Outputs], str],
    ) -> web.Response:
        """Answer a request with a JSON body by a JSON document."""
        version = self._find_version(request)
        body = await self._read(request)
        return await self._engine.predict(
            request.match_info["model"],
            version,
            lambda model: parse(model, tensors.parse_json(body)),
            lambda answer: _write_json(write(answer.outputs)),
            len(body),
        )

    async def _infer(self, request: web.Request) -> web.Response:
        version = self._find_version(request)
        body = await self._read(request)
        header = request.headers.get(open_inference.SIZE_HEADER)
        document: dict[str, Any] = {}

        def parse(model: models.Model) -> requests.Request:
            header_fields, rest_of_body = open_inference.split_body(body, header)
            document.update(header_fields)
            limit = self._settings.max_rows
            return open_inference.read_infer(model, document, rest_of_body, limit)

        def write(answer: engine.Answer) -> web.Response:
            content, json_bytes = open_inference.write_infer(answer, document)
            if json_bytes is None:
                return web.Response(body=content, content_type=_JSON)
            headers = {open_inference.SIZE_HEADER: str(json_bytes)}
            kind = "application/octet-stream"
            return web.Response(body=content, content_type=kind, headers=headers)

        name = request.match_info["model"]
        return await self._engine.predict(name, version, parse, write, len(body))

    async def _server(self, request: web.Request) -> web.Response:
        facts = {"name": "mtl", "version": mtl.__version__, "extensions": ["binary_tensor_data"]}
        return web.json_response(facts)

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        is_ready = self._engine.is_ready
        state = {"live": True, "ready": is_ready}
        return web.json_response(state, status=200 if is_ready else 503)

    async def _model(self, request: web.Request) -> web.Response:
        with self._engine.versions.lease(self._find_version(request)) as model:
            states = self._engine.versions.list_states()
            numbers = [number for number, state in states.items() if state.name == "AVAILABLE"]
            return web.json_response(open_inference.describe_model(model, sorted(numbers)))

    async def _model_ready(self, request: web.Request) -> web.Response:
        with self._engine.versions.lease(self._find_version(request)) as model:
            is_ready = self._engine.is_ready
            facts = {"name": model.name, "ready": is_ready}
            return web.json_response(facts, status=200 if is_ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        text = self._engine.metrics.write(self._engine.versions.newest)
        return web.Response(body=text, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _example(self, request: web.Request) -> web.Response:
        with self._engine.versions.lease(None) as model:
            return web.json_response(examples.make_rest(model))


def _name_method(request: web.Request) -> str:
    """Return the name under which metrics count a request; "other" for unknown paths."""
    if request.match_info.route.resource is None:
        return "other"
    # For example, the handler of the method "predict" is named "_predict".
    return request.match_info.handler.__name__.strip("_")


def _too_large(limit: int) -> failures.RequestError:
    problem = f"a request must have at most {limit} bytes (--max_body_bytes)"
    return failures.RequestError(failures.TOO_LARGE, problem)


def _write_json(text: str) -> web.Response:
    return web.Response(body=text.encode("utf-8", "replace"), content_type=_JSON)


def _write_failure(failure: failures.RequestError) -> web.Response:
    headers = {}
    if failure.kind == failures.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if failure.kind == failures.BUSY:
        headers["Retry-After"] = "1"
    body = json.dumps({"error": str(failure)}).encode()
    return web.Response(body=body, status=failure.kind.status, content_type=_JSON, headers=headers)
