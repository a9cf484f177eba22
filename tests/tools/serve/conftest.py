"""Servers of the export with every kind of feature, in an event loop of a thread."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import shutil
import threading
import time
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("tensorflow_serving", reason="needs the extra 'serve'")

from mtl import checks  # noqa: E402
from mtl.serving import loaded, warm_up  # noqa: E402
from mtl.tools.serve import finding, server, settings  # noqa: E402
from tests.serving.conftest import export, made, make, vocabulary  # noqa: E402, F401

NAME = "shop"


@dataclasses.dataclass
class Reply:
    """An answer of HTTP."""

    status: int
    body: bytes
    headers: Any

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert list(self.json) == ["error"], self.body
        return self.json["error"]


@dataclasses.dataclass
class Served:
    """A server that runs, and how to ask it."""

    running: server.Running
    held: Any
    loop: asyncio.AbstractEventLoop
    stop: Any

    @property
    def rest(self):
        return f"127.0.0.1:{self.running.rest_port}"

    @property
    def grpc(self):
        return f"127.0.0.1:{self.running.grpc_port}"

    def ask(self, path, body=None, method=None, **headers):
        """Return the answer to GET, or to POST if there is a body: bytes, or a value for JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.rest, timeout=30)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method or ("GET" if body is None else "POST"), path, data, given)
            response = connection.getresponse()
            return Reply(response.status, response.read(), response.headers)

    def advance(self, secs):
        """Let the clock of the event loop jump, so that a limit of time passes at once."""
        read = self.loop.time
        self.loop.time = lambda: read() + secs
        self.loop.call_soon_threadsafe(lambda: None)

    def predict(self, **body):
        return self.ask(f"/v1/models/{NAME}:predict", body)

    def infer(self, **body):
        return self.ask(f"/v2/models/{NAME}/infer", body)

    def count(self, name):
        """The sum of the samples of a metric whose line starts with `name`."""
        text = self.ask("/monitoring/prometheus/metrics").body.decode()
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.split()[-1]) for line in lines)


def wait_until(is_so):
    """Wait until a condition holds; fail after a minute."""
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextlib.contextmanager
def serving(base, **changes):
    """Serve the versions of a folder, on free ports, in another thread."""
    given = {"rest_port": 0, "grpc_port": 0, "threads": 2, "poll_secs": 0.05, **changes}
    chosen = settings.Settings(**given)
    name, held = server.open_versions(None, finding.Exports([str(base)]), chosen)
    assert name == NAME
    started, box = threading.Event(), {}

    async def run():
        box["loop"], box["stop"] = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with server.start(name, held, chosen) as running:
                box["served"] = Served(running, held, box["loop"], stop)
                started.set()
                await box["stop"].wait()
        except checks.UserError as error:
            box["error"] = error
        finally:
            started.set()

    def stop():
        box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join(60)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    started.wait(60)
    try:
        if "served" not in box:
            raise box["error"]
        yield box["served"]
    finally:
        if "served" in box and thread.is_alive():
            stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def base(export, tmp_path_factory):  # noqa: F811
    """A folder with version 7 of the export, which no test may change."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(export, folder / "7")
    return folder


@pytest.fixture(scope="session")
def rows(base):
    """The 32 warm-up rows: {signature: {input: [32, ...]}}."""
    return {name: found[1] for name, found in warm_up.predict_inputs(str(base / "7")).items()}


@pytest.fixture(scope="session")
def expected(base, rows):
    """The outputs of the export in this process: expected(signature, inputs)."""
    # Not `load_export`, whose graph would be the default one of all other tests.
    model = loaded.open_export(str(base / "7"))

    def compute(signature, inputs):
        outputs = model([signature], inputs)
        return {name: value for (_, name), value in outputs.items()}

    yield compute
    model.session.close()


@pytest.fixture(scope="session")
def served(base):
    """A server that all quick tests share."""
    with serving(base) as running:
        yield running
