"""Runs the servers of a model until a signal stops them.

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
    """A server that listens.

    Attributes:
      engine: the engine that answers requests.
      model: the version at the start.
      rest_port, grpc_port: the ports of the server.
    """

    engine: engine.Engine
    model: models.Model
    rest_port: int
    grpc_port: int


def open_versions(
    name: str | None, exports: finding.Exports, made: settings.Settings
) -> tuple[str, versions.Versions]:
    """Load a version of a model.

    Args:
      name: the name of the model for clients; None for the name in the export.
      exports: the folders of versions.
      made: the settings.

    Returns:
      The name of the model, and its versions.

    Raises:
      UserError: there is no version, or the version cannot be loaded.
    """
    number = exports.choose_version(made.version)
    described = metadata.read_metadata(exports.list_versions()[number])
    name = name or described.get("model", "mtl")
    checks.scope_name("--model_name", name)
    model_versions = versions.Versions(
        exports.list_versions, versions.make_loader(name), made.keep_versions, made.version
    )
    model_versions.load_first()
    return name, model_versions


@contextlib.asynccontextmanager
async def start(
    name: str, held: versions.Versions, made: settings.Settings
) -> AsyncIterator[Running]:
    """Listen in this context, and finish the running requests at its end.

    Args:
      name: the name of the model for clients.
      held: the versions of the model; at least one is loaded.
      made: the settings.

    Raises:
      UserError: an address, a token or a certificate cannot be used.
    """
    tls = access.read_tls(made.tls_cert, made.tls_key) if made.tls_cert and made.tls_key else None
    counts = metrics.Metrics(name)
    async with contextlib.AsyncExitStack() as opened:
        # At the end, callbacks run in reverse order: servers drain, then the log is written, and
        # then models close.
        opened.callback(held.close)
        with held.lease(None) as model:
            log = request_log.open_log(made, model, counts.note_unlogged)
        if log is not None:
            opened.callback(log.close)
        core = engine.Engine(name, held, made, counts, log)
        opened.callback(core.close)
        web, calls = http_server.HttpServer(core), grpc_server.GrpcServer(core)
        # Both servers finish their requests at the same time.
        opened.push_async_callback(lambda: _stop_servers(core, web, calls))
        rest_port = await _start_listening(
            "rest_port", made, web.start(tls.context if tls else None)
        )
        grpc_port = await _start_listening("grpc_port", made, calls.start(tls))
        watching = asyncio.create_task(_watch_versions(held, made.poll_secs))
        opened.callback(watching.cancel)
        with held.lease(None) as model:
            running = Running(core, model, rest_port, grpc_port)
        yield running


async def _start_listening(flag: str, made: settings.Settings, starting: Awaitable[int]) -> int:
    try:
        return await starting
    except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError without a reason.
        number = getattr(error, "errno", None) or errno.EADDRINUSE
        settings.refuse_port(flag, made.host, getattr(made, flag), os.strerror(number))


async def _stop_servers(
    core: engine.Engine, web: http_server.HttpServer, calls: grpc_server.GrpcServer
) -> None:
    core.is_stopping = True
    await asyncio.gather(web.stop(), calls.stop())


async def _watch_versions(held: versions.Versions, secs: float) -> None:
    """Load new versions as they appear."""
    while True:
        await asyncio.sleep(secs)
        try:
            # Load models in a thread: this takes seconds, and the event loop has to answer
            # requests.
            await asyncio.to_thread(held.poll)
        except Exception as error:  # A network folder may be unavailable for a while.
            _log.warning("Cannot look for new versions: %s.", " ".join(str(error).split()))


async def serve(
    name: str,
    held: versions.Versions,
    made: settings.Settings,
    on_start: Callable[[Running], None],
) -> None:
    """Serve until SIGINT or SIGTERM arrives, and then finish the running requests.

    A second signal ends the process at once.

    Args:
      name: the name of the model for clients.
      held: the versions of the model; at least one is loaded.
      made: the settings.
      on_start: called once the server listens.

    Raises:
      UserError: see `start`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        async with start(name, held, made) as running:
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
