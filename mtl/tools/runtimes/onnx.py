"""Converts an export to ONNX, for runtimes without TensorFlow.

The conversion needs the extra `onnx` of this package.

difference = onnx.write_onnx("models/digits/1795231775", "digits.onnx")
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mtl import checks, versions
from mtl.deferred import tf
from mtl.files import atomic, storage
from mtl.serving import rows
from mtl.tools.runtimes import frozen, spelled_out

_OPSET = 17


def write_onnx(directory: str, path: str, held_out: rows.HeldOut | None = None) -> float:
    """Convert the signature "raw/lean" of an export, or else "raw", to ONNX.

    The inputs of the ONNX model are the features as tensors, or ids if the export has the folder
    portable/ids. All inputs are required. The outputs have the same names as in the signature of
    the export.

    Args:
      directory: the folder of the export, with its warm-up requests.
      path: the path of the ONNX file. The file is only written if the ONNX model and the export
        have equal outputs for the warm-up requests.
      held_out: rows for which the outputs of the ONNX model must also equal the predictions of the
        checkpoint.

    Returns:
      The largest difference between an output of the ONNX model and the expected output.

    Raises:
      UserError: a file of the export is damaged, tf2onnx is not installed or cannot convert an
        operation of the model, or the file cannot be written.
      RefusedError: an output of the ONNX model differs from the export or from the checkpoint.
    """
    converter, runtime = require()
    intact = frozen.load_intact(directory)
    with intact as source, tempfile.TemporaryDirectory() as scratch:
        converted = os.path.join(scratch, "model.onnx")
        _convert_graph(converter, frozen.freeze(source.model, source.name), converted)
        with _one_line():
            # The session only checks the file, so a provider for the CPU is enough.
            session = runtime.InferenceSession(converted, providers=["CPUExecutionProvider"])
        run = functools.partial(_run_session, session)
        difference = source.check(run, "ONNX export", held_out)
        _place(converted, path)
    return difference


def _run_session(session: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    with _one_line():
        return dict(zip(names, session.run(names, batch), strict=True))


def require() -> tuple[Any, Any]:
    """Return the packages tf2onnx and onnxruntime.

    Raises:
      UserError: a package is not installed.
    """
    return _import_module("tf2onnx"), _import_module("onnxruntime")


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise checks.UserError(
            f"--onnx needs {name}, which is not installed. Run: {versions.how_to_get('onnx')}."
        ) from error


def _place(converted: str, path: str) -> None:
    with storage.writing("--onnx", "a file", path), atomic.replacing(path) as partial:
        tf.io.gfile.copy(converted, partial, overwrite=True)


def _convert_graph(converter: Any, model: frozen.Frozen, path: str) -> None:
    spelled_out.write_buckets(model.graph)
    spelled_out.write_bounds(model.graph)
    spelled_out.write_logs(model.graph)
    spelled_out.write_sums(model.graph, model.graph_def)
    graph_def = model.graph_def
    try:
        with _silence_log():
            converted, _ = converter.convert.from_graph_def(
                graph_def,
                input_names=list(model.inputs),
                output_names=list(model.outputs),
                # {name of a tensor, such as x:0: name in the signature}.
                tensors_to_rename={**model.inputs, **model.outputs},
                opset=_OPSET,
                custom_op_handlers={"SelectV2": (_convert_select, [])},
                output_path=path,
            )
    except (ValueError, NotImplementedError, RuntimeError) as error:
        # List missing operations here, because the error of tf2onnx may name another operation.
        reason = _describe_lacking(model, _list_without_rule(graph_def))
        reason = reason or frozen.describe_error(error)
        raise checks.UserError(f"tf2onnx cannot convert this model: {reason}") from error

    # tf2onnx may return a graph with operations that ONNX lacks, which would only fail when it is
    # loaded.
    unknown = _describe_lacking(model, _list_unknown(converted.graph))
    if unknown:
        raise checks.UserError(f"tf2onnx cannot convert this model: {unknown}")


def _convert_select(context: Any, node: Any, name: str, arguments: Any) -> Any:
    """Convert SelectV2 to Where; tf2onnx would multiply unselected values by 0, which keeps NaN."""
    del context, name, arguments
    node.type = "Where"
    return node


def _describe_lacking(model: frozen.Frozen, operations: Iterable[str]) -> str:
    """Return a sentence about operations that ONNX lacks; "" without operations."""
    operation_list = frozen.describe_lacking(model, operations)
    return operation_list and f"ONNX has no operation {operation_list}."


def _list_without_rule(graph: tf.compat.v1.GraphDef) -> list[str]:
    """Return the operations of a graph for which tf2onnx has no rule."""
    rules = _import_module("tf2onnx.handler").tf_op.create_mapping(_OPSET, None)
    # tf2onnx needs no rules for the operations that are listed here.
    supported_operations = {*rules, "Assert", "Const", "NoOp", "Placeholder"}
    return [node.op for node in graph.node if node.op not in supported_operations]


@contextlib.contextmanager
def _silence_log() -> Iterator[None]:
    """Keep tf2onnx from logging tracebacks of its internal errors."""
    logger = logging.getLogger("tf2onnx")
    earlier_level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(earlier_level)


def _list_unknown(graph: Any) -> Iterator[str]:
    """Yield the operations of a graph that ONNX lacks, also in loops and branches."""
    for node in graph.node:
        if not _import_module("onnx").defs.has(node.op_type, node.domain):
            yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _list_unknown(attribute.g)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Errors of onnxruntime lack a common class.
        reason = frozen.describe_error(error)
        raise checks.UserError(f"onnxruntime cannot run this model: {reason}") from error
