"""Compares `launch.serve` by gRPC and REST with a bare `tf.function` of the same export.

Two server processes on this machine serve each model, one with and one without batching of
requests. First, a single client sends batches, and the bare function, gRPC and REST take turns
after each call. Then 32 clients in this process send single rows to each server, in turns. Requests
are built in advance. Clients read the replies, and parse the replies of gRPC. Features are sent as
tensors, to the signature `raw`.

    python -m benchmarks.server --models digits,wide

With --triton, Triton serves the same export in the environment of `tests.clients.triton`, and a
client there asks it by gRPC: after the other sides of a batch size, and in turns with 32 clients.
Triton's packages have no backend of TensorFlow, so its Python backend calls the signature.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import grpc
import numpy as np
import requests as http_requests
import tensorflow as tf
from absl import flags
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from benchmarks import overhead, rows
from mtl import networks, verbs
from mtl.configs import config
from tests.clients import environments, triton
from tests.files import object_servers

_MODELS = flags.DEFINE_list("models", ["digits", "wide"], "Models to serve: digits, wide.")
_CALLS = flags.DEFINE_integer("calls", 100, "Timed calls for each protocol and batch size.", 1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Turns of the 32 clients on each server.", 1)
_SINGLE_ROWS = flags.DEFINE_integer(
    "single_rows", 2000, "The number of single-row requests in a turn.", 1
)
_TRITON = flags.DEFINE_boolean("triton", False, "Also measure Triton.")

_BATCHES = (1, 32, 512)
_CLIENTS = 32
# Flags of the two servers: the first joins requests.
_JOINING = ("--batching", "--nobatching")
_WIDE = [2048, 2048, 1024]
# As long as `launch.serve` waits by default.
_JOINED_MICROS = 1000
_TRITON_SCRIPT = pathlib.Path(__file__).with_name("triton_raw.py")
_ADDRESS = re.compile(r"http://(127\.0\.0\.1:\d+)/v1/models/(\S+):predict\n.*gRPC +(\S+)", re.S)


@dataclasses.dataclass(frozen=True)
class Server:
    """The addresses of a running server, and the name of its model."""

    rest: str
    grpc: str
    model: str

    def message(self, inputs: Mapping[str, np.ndarray]) -> Any:
        """Return a PredictRequest for these inputs."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = self.model, "raw"
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        return request

    @property
    def url(self) -> str:
        """The address of predictions by REST."""
        return f"http://{self.rest}/v1/models/{self.model}:predict"


def body(inputs: Mapping[str, np.ndarray]) -> bytes:
    """Return the body of a REST request, in the columnar format."""
    columns = {name: value.tolist() for name, value in inputs.items()}
    return json.dumps({"signature_name": "raw", "inputs": columns}).encode()


def export(model: str, folder: str) -> tuple[str, dict[str, np.ndarray]]:
    """Train and export a model; return the folder of its versions, and 512 rows of its inputs."""
    rng = np.random.default_rng(0)
    if model == "digits":
        params = ["Run.train_steps = 200", "Run.checkpoint_steps = 200"]
        made = config.load(["gin_configs/experiments/digits_shared_bottom.gin"], params)
        inputs = {"image": rng.integers(0, 17, (512, 8, 8, 1), np.uint8)}
    else:
        made = overhead.an_experiment(_WIDE[0], steps_per_call=1, steps=2)
        trunk = networks.SharedBottom(trunk=networks.MLP(layers=_WIDE))
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, network=trunk))
        inputs = {"x": rng.normal(size=(512, 32)).astype(np.float32)}
    verbs.train(made, os.path.join(folder, "run"))
    verbs.export(made, os.path.join(folder, "run"), os.path.join(folder, "export"))
    return os.path.join(folder, "export"), inputs


@contextlib.contextmanager
def serve(folder: str, *args: str) -> Iterator[Server]:
    """Run `launch.serve` on free ports while the context is open."""
    ports = ["--rest_port=0", "--grpc_port=0", f"--max_rows={_BATCHES[-1]}"]
    command = [sys.executable, "-m", "launch.serve", f"--export={folder}", *ports, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("Stop it"):
                break
        rest, model, address = _ADDRESS.search(text).groups()
        try:
            yield Server(rest, address, model)
        finally:
            process.terminate()


@dataclasses.dataclass(frozen=True)
class Triton:
    """A running Triton, and clients in its environment.

    Attributes:
      command: the program of the clients.
      port: the port of gRPC.
      rows: a file with the rows to send.
    """

    command: Sequence[str]
    port: int
    rows: str

    def time_calls(self, size: int) -> np.ndarray:
        """Return the seconds of each call with a batch of this size."""
        return np.array(self._ask("ask", _CALLS.value, size)[str(size)])

    def measure_rows(self) -> float:
        """Return the rows per second of 32 clients that send single rows."""
        return self._ask("crowd", _SINGLE_ROWS.value, _CLIENTS)

    def _ask(self, verb: str, *args: int) -> Any:
        command = [*self.command, verb, str(self.port), self.rows, *map(str, args)]
        environ = environments.environ()
        environ.pop("PYTHONPATH")
        run = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
        return json.loads(run.stdout)


@contextlib.contextmanager
def serve_triton(
    path: str, inputs: Mapping[str, np.ndarray], folder: str, micros: int
) -> Iterator[Triton]:
    """Run Triton while the context is open; it joins requests that arrive within `micros`."""
    command = [triton.build(str(environments.find_folder("triton"))), str(_TRITON_SCRIPT)]
    sent_rows, port = os.path.join(folder, "rows.npz"), object_servers.find_port()
    http_port, log = object_servers.find_port(), pathlib.Path(folder, f"triton_{micros}.log")
    np.savez(sent_rows, **inputs)
    served = [*command, "serve", path, *map(str, (port, http_port, micros))]
    with triton.run(served, http_port, ["raw"], log):
        yield Triton(command, port, sent_rows)


def time_calls(sides: Mapping[str, Callable[[], Any]]) -> dict[str, np.ndarray]:
    """Call functions in turns; return {name: seconds of each call}, without 10 warm-up calls."""
    secs: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(10 + _CALLS.value):
        for name, call in sides.items():
            start = time.perf_counter()
            call()
            if index >= 10:
                secs[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in secs.items()}


def measure_batches(
    model: str,
    path: str,
    inputs: Mapping[str, np.ndarray],
    server: Server,
    rival: Triton | None = None,
) -> None:
    """Print a line of latencies for each batch size and protocol."""
    function = tf.saved_model.load(path).signatures["raw"]
    session = http_requests.Session()
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for size in _BATCHES:
            batch = {name: value[:size] for name, value in inputs.items()}
            tensors = {name: tf.constant(value) for name, value in batch.items()}
            message, text = server.message(batch), body(batch)
            sides = {
                "tf.function": lambda request=tensors: [
                    v.numpy() for v in function(**request).values()
                ],
                "gRPC": lambda request=message: stub.Predict(request, timeout=60),
                "REST": lambda request=text: session.post(server.url, request, timeout=60).content,
            }
            times = time_calls(sides)
            if rival is not None:
                times["Triton"] = rival.time_calls(size)
            for name, secs in times.items():
                p50, p99 = np.percentile(secs, [50, 99])
                share = np.median(times["tf.function"]) / p50
                print(
                    f"{model:<8}{size:>6}  {name:<12}{1000 * p50:>9.2f}{1000 * p99:>9.2f}"
                    f"{size / p50:>11,.0f}{share:>9.2f}",
                    flush=True,
                )


async def ask_often(count: int, ask: Callable[[int], Awaitable[Any]]) -> float:
    """Return the seconds until `_CLIENTS` clients together have sent `count` requests."""
    requests = iter(range(count))

    async def client(number: int) -> None:
        for _ in requests:
            await ask(number)

    start = time.perf_counter()
    await asyncio.gather(*[client(number) for number in range(_CLIENTS)])
    return time.perf_counter() - start


async def measure_rows(inputs: Mapping[str, np.ndarray], server: Server) -> dict[str, float]:
    """Return {protocol: rows per second} of 32 clients that send single rows."""
    row = {name: value[:1] for name, value in inputs.items()}
    message, text, count = server.message(row), body(row), _SINGLE_ROWS.value
    channel = grpc.aio.insecure_channel(server.grpc)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    async def ask_grpc(number: int) -> None:
        await stub.Predict(message, timeout=60)

    speeds = {}
    connector = aiohttp.TCPConnector(limit=_CLIENTS)
    async with channel, aiohttp.ClientSession(connector=connector) as session:

        async def ask_rest(number: int) -> None:
            async with session.post(server.url, data=text) as response:
                await response.read()

        for name, ask in (("gRPC", ask_grpc), ("REST", ask_rest)):
            await ask_often(_CLIENTS, ask)
            speeds[name] = count / await ask_often(count, ask)
    return speeds


def measure_crowds(
    model: str,
    inputs: Mapping[str, np.ndarray],
    servers: Sequence[Server],
    rivals: Sequence[Triton],
) -> None:
    """Print a line for each protocol: single rows joined by the server, and each alone.

    Args:
      model: the name of the model.
      inputs: rows, of which the first is sent.
      servers: the server that joins requests, and the server that does not.
      rivals: the same two of Triton, or none.
    """
    speeds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(_ROUNDS.value):
        joined, alone = (asyncio.run(measure_rows(inputs, server)) for server in servers)
        for name in joined:
            speeds.setdefault(name, []).append((alone[name], joined[name]))
        if rivals:
            together, single = (rival.measure_rows() for rival in rivals)
            speeds.setdefault("Triton", []).append((single, together))
    for name, pairs in speeds.items():
        gain = np.median([b / a for a, b in pairs])
        alone, together = np.median(pairs, axis=0)
        print(f"{model:<9}{name:<36}{alone:>9,.0f}{together:>9,.0f}{gain:>9.2f}")


def main() -> None:
    """Print a table of batches and a table of single rows for each model."""
    for model in _MODELS.value:
        with tempfile.TemporaryDirectory() as folder:
            versions, inputs = export(model, folder)
            version = max(name for name in os.listdir(versions) if name.isdigit())
            path = os.path.join(versions, version)
            with contextlib.ExitStack() as stack:
                servers = [stack.enter_context(serve(versions, flag)) for flag in _JOINING]
                rivals = [
                    stack.enter_context(serve_triton(path, inputs, folder, micros))
                    for micros in (_JOINED_MICROS, 0)
                    if _TRITON.value
                ]
                print("model    batch  side           p50, ms  p99, ms     rows/s    share")
                measure_batches(model, path, inputs, servers[0], *rivals[:1])
                print("model    32 clients of single rows, rows/s    alone   joined     gain")
                measure_crowds(model, inputs, servers, rivals)


if __name__ == "__main__":
    rows.run(main)
