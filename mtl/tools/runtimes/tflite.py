"""Converts an export to TensorFlow Lite, with float32, sparse or 8-bit weights.

difference = tflite.write_tflite("models/digits/1795231775", "digits.tflite", "sparse")
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.files import atomic, storage
from mtl.serving import rows, verification
from mtl.tf_internals import eager
from mtl.tools.runtimes import frozen, spelled_out

FLOAT32, SPARSE, INT8 = "float32", "sparse", "int8"
KINDS = (FLOAT32, SPARSE, INT8)

# The tolerance of 8-bit weights is the same as in `Optimized`.
_TOLERANCES = {FLOAT32: verification.TOLERANCE, SPARSE: verification.TOLERANCE, INT8: 0.1}
_SIGNATURE = "serving_default"
# A pattern that finds missing operations in the converter's error message.
_LACKING = re.compile(r"(?:TF Select|Custom) ops: (.+)")


def write_tflite(
    directory: str,
    path: str,
    weights: str = FLOAT32,
    held_out: rows.HeldOut | None = None,
) -> float:
    """Convert the signature "raw/lean" of an export, or else "raw", to TensorFlow Lite.

    The inputs of the converted model are the features as tensors, or ids if the export has the
    folder portable/ids. The outputs have the same names as in the signature of the export.

    Args:
      directory: the folder of the export, with its warm-up requests.
      path: the path of the TensorFlow Lite file. The file is only written if the converted model
        and the export have equal outputs for the warm-up requests.
      weights: "float32"; "sparse" to neither store nor multiply zeros in large dense layers; or
        "int8" for 8-bit integers with a step size for each channel. With "int8", only outputs whose
        values are floats are compared.
      held_out: rows for which the outputs of the converted model must also equal the predictions of
        the checkpoint.

    Returns:
      The largest difference between an output of the converted model and the expected output.

    Raises:
      UserError: `weights` is unknown, a file of the export is damaged, TensorFlow Lite lacks an
        operation of the model, or the file cannot be written.
      RefusedError: an output of the converted model differs from the export or from the checkpoint.
    """
    checks.one_of("--tflite_weights", weights, KINDS)
    allowed = _TOLERANCES[weights]
    with frozen.load_intact(directory) as source:
        converted = _convert_model(frozen.freeze(source.model, source.name), weights)
        run = make_runner(converted)
        difference = source.check(run, "TensorFlow Lite export", held_out, allowed)
    with storage.writing("--tflite", "a file", path):
        atomic.write(path, converted)
    return difference


def make_runner(model: bytes, threads: int = 1) -> Any:
    """Return a function that runs a TensorFlow Lite model, from {input: array} to {output: array}.

    Args:
      model: the content of a TensorFlow Lite file.
      threads: the number of threads that a call uses.

    Raises:
      UserError: when the returned function is called, if TensorFlow Lite cannot run the model.
    """
    # Hide TensorFlow's warning that the interpreter moves to another package.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_content=model, num_threads=threads)
    runner = interpreter.get_signature_runner(_SIGNATURE)

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return runner(**batch)
        except (RuntimeError, ValueError) as error:
            problem = frozen.describe_error(error)
            raise checks.UserError(f"TensorFlow Lite cannot run this model: {problem}") from error

    return run


def _convert_model(frozen_model: frozen.Frozen, weights: str) -> bytes:
    spelled_out.write_bounds(frozen_model.graph)
    spelled_out.write_float32(frozen_model.graph)
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(scratch, "model")
        _save_model(frozen_model, folder)
        optimize = tf.lite.Optimize
        kinds = {SPARSE: [optimize.EXPERIMENTAL_SPARSITY], INT8: [optimize.DEFAULT]}
        # Use eager mode, because the converter would lose the names of the signature in graph mode.
        with eager.execute_eagerly(), _one_line(frozen_model), _silence_converter():
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, [_SIGNATURE], ["serve"])
            converter.optimizations = kinds.get(weights, [])
            return converter.convert()


def _save_model(frozen_model: frozen.Frozen, folder: str) -> None:
    """Write a frozen graph as a SavedModel with a single signature."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tf.import_graph_def(frozen_model.graph_def, name="")
        inputs, outputs = (
            {key: graph.get_tensor_by_name(name) for name, key in tensors.items()}
            for tensors in (frozen_model.inputs, frozen_model.outputs)
        )
        builder = tf1.saved_model.Builder(folder)
        signature = tf1.saved_model.predict_signature_def(inputs, outputs)
        builder.add_meta_graph_and_variables(session, ["serve"], {_SIGNATURE: signature})
        builder.save()


@contextlib.contextmanager
def _silence_converter() -> Iterator[None]:
    """Discard the converter's output on standard error, because its exceptions repeat this text."""
    sys.stderr.flush()
    # The converter is written in C++, so it writes to file descriptor 2 instead of `sys.stderr`.
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextlib.contextmanager
def _one_line(frozen_model: frozen.Frozen) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # The class of the converter's errors is not public.
        operation_list = ", ".join(_LACKING.findall(str(error)))
        operations = {name.strip().removeprefix("Flex") for name in operation_list.split(",")} - {
            ""
        }
        reason = frozen.describe_error(error)
        if operations:
            reason = f"it has no operation {frozen.describe_lacking(frozen_model, operations)}."
        raise checks.UserError(f"TensorFlow Lite cannot hold this model: {reason}") from error
