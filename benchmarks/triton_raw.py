"""Serves the signature `raw` of a SavedModel by Triton, or asks such a server.

    python triton_raw.py serve SAVED_MODEL GRPC_PORT HTTP_PORT MICROSECONDS
    python triton_raw.py ask GRPC_PORT INPUTS.npz CALLS SIZE...
    python triton_raw.py crowd GRPC_PORT INPUTS.npz ROWS CLIENTS

benchmarks/server.py calls it with the Python of an environment that has `nvidia-pytriton`, and
without this project. Triton joins requests that arrive within the microseconds; with 0, each
request runs alone. `ask` prints a line {size: [seconds of each call]}, and `crowd` prints rows per
second. Both speak gRPC.
"""

import asyncio
import json
import sys
import time

import numpy as np

_MODEL = "raw"
_WARM_UP_CALLS = 10


def serve(path, grpc_port, http_port, micros):
    """Serve until the process is ended."""
    import tensorflow as tf
    from pytriton.decorators import batch
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    signature = tf.saved_model.load(path).signatures[_MODEL]
    is_joining = int(micros) > 0

    def describe(specs):
        # If Triton joins requests, it adds the axis of the rows itself, and needs another axis.
        shapes = {name: spec.shape.as_list()[is_joining:] or [1] for name, spec in specs.items()}
        return [
            Tensor(
                name=name,
                dtype=np.bytes_ if spec.dtype == tf.string else spec.dtype.as_numpy_dtype,
                shape=tuple(-1 if size is None else size for size in shapes[name]),
            )
            for name, spec in specs.items()
        ]

    def call(arrays):
        tensors = {name: tf.constant(array) for name, array in arrays.items()}
        return {name: value.numpy() for name, value in signature(**tensors).items()}

    @batch
    def joined(**arrays):
        outputs = call(arrays)
        return {name: a[:, np.newaxis] if a.ndim == 1 else a for name, a in outputs.items()}

    alone = lambda requests: [call(request.data) for request in requests]  # noqa: E731
    batcher = DynamicBatcher(max_queue_delay_microseconds=int(micros))
    ports = {"http_port": int(http_port), "grpc_port": int(grpc_port)}
    config = TritonConfig(
        http_address="127.0.0.1", grpc_address="127.0.0.1", allow_metrics=False, **ports
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=_MODEL,
            infer_func=joined if is_joining else alone,
            inputs=describe(signature.structured_input_signature[1]),
            outputs=describe(signature.structured_outputs),
            config=ModelConfig(batching=is_joining, max_batch_size=512, batcher=batcher),
        )
        triton.serve()


def _make_inputs(client, arrays, size):
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in arrays.items():
        rows = array[:size]
        inputs.append(client.InferInput(name, rows.shape, np_to_triton_dtype(rows.dtype)))
        inputs[-1].set_data_from_numpy(rows)
    return inputs


def ask(port, path, calls, *sizes):
    """Time single calls of each batch size."""
    import tritonclient.grpc as client

    arrays, secs = dict(np.load(path)), {}
    with client.InferenceServerClient(f"127.0.0.1:{port}") as server:
        for size in map(int, sizes):
            inputs, secs[size] = _make_inputs(client, arrays, size), []
            for index in range(_WARM_UP_CALLS + int(calls)):
                start = time.perf_counter()
                server.infer(_MODEL, inputs)
                if index >= _WARM_UP_CALLS:
                    secs[size].append(time.perf_counter() - start)
    print(json.dumps(secs))


async def _crowd(port, path, count, clients):
    import tritonclient.grpc.aio as client

    inputs = _make_inputs(client, dict(np.load(path)), 1)
    async with client.InferenceServerClient(f"127.0.0.1:{port}") as server:

        async def ask_often(requests):
            for _ in requests:
                await server.infer(_MODEL, inputs)

        async def time_requests(count):
            requests, start = iter(range(count)), time.perf_counter()
            await asyncio.gather(*[ask_often(requests) for _ in range(clients)])
            return count / (time.perf_counter() - start)

        await time_requests(clients)
        print(json.dumps(await time_requests(count)))


def crowd(port, path, count, clients):
    """Send single rows from several clients at a time."""
    asyncio.run(_crowd(port, path, int(count), int(clients)))


if __name__ == "__main__":
    {"serve": serve, "ask": ask, "crowd": crowd}[sys.argv[1]](*sys.argv[2:])
