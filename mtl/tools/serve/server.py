"""Runs the HTTP server and the gRPC server of a model until a signal arrives.

name, models = server.open_versions("adult", exports, settings.Settings())
asyncio.run(server.serve(name, models, settings.Settings(), print))
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from mtl import checks
from mtl.serving import metadata
from mtl.tools.serve import (
    access,
    engine,
    finding,
    grpc_server,
    http_server,
    metrics,
    models,
    request_log,
    settings,
    versions,
)

_log = logging.getLogger("mtl.tools.serve")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Running(NamedTuple):
    """A server that accepts requests.

    Attributes:
      engine: the engine that answers requests.
      model: the newest version of the model when the server started.
      rest_port, grpc_port: the ports of the server.
    """

    engine: engine.Engine
    model: models.Model
    rest_port: int
    grpc_port: int


def open_versions(
    name: str | None, exports: finding.Exports, config: settings.Settings
) -> tuple[str, versions.Versions]:
    """Find the versions of a model, and load the first version to serve.

    Args:
      name: the name under which clients call the model; None for the name that the export stores.
      exports: the folders of versions.
      config: the settings of the server.

    Returns:
      The name of the model, and its versions.

    Raises:
      UserError: there is no version to serve, or the version cannot be loaded.
    """
    number = exports.choose_version(config.version)
    export_facts = metadata.read_metadata(exports.list_versions()[number])
    name = name or export_facts.get("model", "mtl")
    checks.scope_name("--model_name", name)
    model_versions = versions.Versions(
        exports.list_versions, versions.make_loader(name), config.keep_versions, config.version
    )
    model_versions.load_first()
    return name, model_versions


@contextlib.asynccontextmanager
async def start(
    name: str, model_versions: versions.Versions, config: settings.Settings
) -> AsyncIterator[Running]:
    """Start the servers; when the context ends, finish the running requests and stop.

    Args:
      name: the name under which clients call the model.
      model_versions: the versions of the model; at least one is loaded.
      config: the settings of the server.

    Raises:
      UserError: an address, a token or a certificate cannot be used.
    """
    tls = (
        access.read_tls(config.tls_cert, config.tls_key)
        if config.tls_cert and config.tls_key
        else None
    )
    counts = metrics.Metrics(name)
    async with contextlib.AsyncExitStack() as exit_stack:
        # `ExitStack` runs callbacks in reverse order: first, servers finish their requests; then,
        # the log is written; last, the models close.
        exit_stack.callback(model_versions.close)
        with model_versions.lease(None) as model:
            log = request_log.open_log(config, model, counts.note_unlogged)
        if log is not None:
            exit_stack.callback(log.close)
        core = engine.Engine(name, model_versions, config, counts, log)
        exit_stack.callback(core.close)
        web, calls = http_server.HttpServer(core), grpc_server.GrpcServer(core)
        # Both servers finish their requests at the same time.
        exit_stack.push_async_callback(lambda: _stop_servers(core, web, calls))
        rest_port = await _start_listening(
            "rest_port", config, web.start(tls.context if tls else None)
        )
        grpc_port = await _start_listening("grpc_port", config, calls.start(tls))
        watch = asyncio.create_task(_watch_versions(model_versions, config.poll_secs))
        exit_stack.callback(watch.cancel)
        with model_versions.lease(None) as model:
            running = Running(core, model, rest_port, grpc_port)
        yield running


async def _start_listening(flag: str, config: settings.Settings, starting: Awaitable[int]) -> int:
    try:
        return await starting
    except (OSError, RuntimeError) as error:  # gRPC raises a RuntimeError without errno.
        number = getattr(error, "errno", None) or errno.EADDRINUSE
        settings.refuse_port(flag, config.host, getattr(config, flag), os.strerror(number))


async def _stop_servers(
    core: engine.Engine, web: http_server.HttpServer, calls: grpc_server.GrpcServer
) -> None:
    core.is_stopping = True
    await asyncio.gather(web.stop(), calls.stop())


async def _watch_versions(model_versions: versions.Versions, secs: float) -> None:
    """Look for new versions again and again, and load them."""
    while True:
        await asyncio.sleep(secs)
        try:
            # Loading a model takes seconds, so it runs in a thread: the event loop has to answer
            # requests.
            await asyncio.to_thread(model_versions.poll)
        except Exception as error:  # A folder on a network may be unavailable for a while.
            _log.warning("Cannot look for new versions: %s.", " ".join(str(error).split()))


async def serve(
    name: str,
    model_versions: versions.Versions,
    config: settings.Settings,
    on_start: Callable[[Running], None],
) -> None:
    """Serve until SIGINT or SIGTERM arrives, and then finish the running requests.

    A second signal ends the process at once.

    Args:
      name: the name under which clients call the model.
      model_versions: the versions of the model; at least one is loaded.
      config: the settings of the server.
      on_start: a function that is called when the server accepts requests.

    Raises:
      UserError: see `start`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        async with start(name, model_versions, config) as running:
            on_start(running)
            await stop.wait()
            _log.info("Stopping: finishing the running requests.")
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                # A second signal must end the process even while the event loop is busy.
                signal.signal(number, signal.SIG_DFL)
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    _log.info("Stopped.")
