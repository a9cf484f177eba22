"""Triton with every signature of an export as a model, for tests/clients/triton.py.

    python triton_server.py SAVED_MODEL HTTP_PORT GRPC_PORT

It runs in an environment without this project. Triton's own TensorFlow backend is not among the
packages of PyPI: its Python backend runs the signatures here. A model is called as its signature,
with `.` for each `/`.
"""

import sys

import numpy as np
import tensorflow as tf
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

tf1 = tf.compat.v1


def describe(infos, is_optional=False):
    """Return tensors of a signature, {name: TensorInfo}, as Triton describes them."""
    return [
        Tensor(
            name=name,
            dtype=np.bytes_ if info.dtype == tf.string else tf.as_dtype(info.dtype).as_numpy_dtype,
            shape=tuple(dim.size for dim in info.tensor_shape.dim),
            optional=is_optional,
        )
        for name, info in sorted(infos.items())
    ]


def name_inputs(signature, is_raw):
    """Return {name: TensorInfo}; clients know serialized tf.Examples by the name `examples`."""
    if is_raw:
        return dict(signature.inputs)
    (info,) = signature.inputs.values()
    return {"examples": info}


def answer(session, inputs, outputs):
    """Return the function that Triton calls with the requests of a signature."""
    fetches = {name: info.name for name, info in outputs.items()}

    def answer_one(request):
        feed = {inputs[name].name: value for name, value in request.data.items()}
        try:
            return session.run(fetches, feed)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
            # TensorFlow's Python cannot write some messages, as they hold the bytes of a request.
            raise PyTritonRuntimeError(f"InvalidArgument: {error!r:.300}") from error

    return lambda requests: list(map(answer_one, requests))


def main(path, http_port, grpc_port):
    """Serve until the process is ended."""
    session = tf1.Session(graph=tf.Graph())
    with session.graph.as_default():
        signatures = tf1.saved_model.load(session, ["serve"], path).signature_def
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(http_port),
        grpc_address="127.0.0.1",
        grpc_port=int(grpc_port),
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        for name, signature in signatures.items():
            if name.startswith("__"):
                continue
            is_raw = name.split("/")[0] == "raw"
            inputs = name_inputs(signature, is_raw)
            triton.bind(
                model_name=name.replace("/", "."),
                infer_func=answer(session, inputs, signature.outputs),
                inputs=describe(inputs, is_raw),
                outputs=describe(signature.outputs),
                config=ModelConfig(batching=False),
            )
        triton.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
