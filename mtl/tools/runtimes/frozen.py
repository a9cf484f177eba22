"""Freezes a signature of an export for other runtimes, with weights as constants.

with frozen_lib.load_intact(directory) as source:
    frozen = frozen_lib.freeze(source.model, source.name)
    difference = source.check(run, "ONNX export", held_out)
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.serving import (
    folding,
    graphs,
    inputs,
    loaded,
    metadata,
    rows,
    settings,
    verification,
    warm_up,
)
from mtl.tools.runtimes import outside_ids, portable
from mtl.tools.runtimes.encoders import encoder

# Prefer the lean signature, which has fewer outputs to convert.
_NAMES = (f"{settings.RAW}/{settings.LEAN}", settings.RAW)

# Operations that belong to lookups of columns, but lie outside of the columns' scopes.
_WITH_LOOKUPS = {"HashTableV2", "LookupTableSizeV2"}

# Lines with these texts in TensorFlow's errors only name a place in the graph.
_PLACES = ("Graph execution error", "Detected at node", "Node:", "[[")

Requests = list[dict[str, np.ndarray]]

Run = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
"""A function that runs a model in another runtime: {input: array} -> {output: array}."""


class Source(NamedTuple):
    """A signature of an export that is converted for another runtime.

    Attributes:
      model: the SavedModel with the signature.
      name: the name of the signature.
      requests: the inputs of each warm-up request, {input: [B, ...]}.
      encode: a function from rows to the inputs of the signature.
    """

    model: loaded.Loaded
    name: str
    requests: Requests
    encode: Callable[[rows.Rows], dict[str, np.ndarray]]

    def check(
        self,
        run: Run,
        what: str,
        held_out: rows.HeldOut | None = None,
        allowed: float = verification.TOLERANCE,
    ) -> float:
        """Compare the outputs of another runtime with the export, and with the checkpoint.

        If `allowed` is above `verification.TOLERANCE`, only outputs whose values are floats are
        compared.

        Args:
          run: a function that runs the model in the other runtime.
          what: the name of the converted model in error messages.
          held_out: rows with predictions of the checkpoint; None to compare only the warm-up
            requests.
          allowed: the largest allowed difference.

        Returns:
          The largest difference between an output of the other runtime and the expected output.

        Raises:
          UserError: there are neither warm-up requests nor held-out rows.
          RefusedError: an output differs from the expected output by more than `allowed`.
        """
        has_rows = bool(self.requests) or held_out is not None
        checks.require(has_rows, "Serving.check_rows", f"be above 0 to check the {what}", 0)
        differences = [0.0]
        for request in self.requests:
            expected = {key: value for (_, key), value in self.model([self.name], request).items()}
            outputs = run(request)
            differences += _compare_outputs(outputs, expected, what, allowed, "the export gives")
        if held_out is not None:
            outputs = run(self.encode(held_out.rows))
            keys = self.model.signatures[self.name].outputs
            expected = {key: held_out.expected[key] for key in keys}
            source = "the checkpoint predicts"
            differences += _compare_outputs(outputs, expected, what, allowed, source)
        return max(differences)


class Frozen(NamedTuple):
    """A graph whose inputs are placeholders, and whose weights are constants.

    Attributes:
      graph: the graph, which is rewritten in place for a runtime.
      inputs: {name of a tensor: input of the signature}.
      outputs: {name of a tensor: output of the signature}.
    """

    graph: graphs.Graph
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def graph_def(self) -> tf.compat.v1.GraphDef:
        """The graph with only the inputs and the nodes that the outputs need."""
        return self.graph.pruned([graphs.name_of(name) for name in (*self.outputs, *self.inputs)])


def find_requests(directory: str) -> tuple[str, Requests]:
    """Find the signature of an export to convert, and its warm-up requests.

    Args:
      directory: the folder of the export.

    Returns:
      The name of the signature, which is "raw/lean", or "raw" if "raw/lean" has no warm-up
      requests; and the inputs of each warm-up request of the signature, {input: [B, ...]}.

    Raises:
      UserError: the export has neither "raw/lean" nor "raw" with warm-up requests.
    """
    requests = warm_up.predict_inputs(directory)
    name = next((name for name in _NAMES if name in requests), None)
    rule = f"hold the signature {_NAMES[-1]!r} and warm-up requests for it"
    if name is None:
        checks.fail("the export", rule, sorted(requests))
    return name, requests[name]


@contextlib.contextmanager
def load_intact(directory: str) -> Iterator[Source]:
    """Load the signature to convert for other runtimes, and close the export at the end.

    If the export has the folder portable/ids, the signature takes ids. If the export has no folder
    portable/ids, `find_requests` chooses the signature.

    Args:
      directory: the folder of the export.

    Raises:
      UserError: a file is missing or damaged, or the export has no signature to convert.
    """
    metadata.require_intact(directory)
    folder = os.path.join(directory, portable.FOLDER, portable.IDS)
    has_ids = tf.io.gfile.isdir(folder)
    try:
        if has_ids:
            # The files in `folder` are intact, because `require_intact` has also checked their
            # checksums.
            source = _open_ids(directory, folder)
        else:
            name, requests = find_requests(directory)
            model = loaded.open_export(directory)
            source = Source(model, name, requests, lambda batch: batch.raw())
    except (OSError, ValueError, tf.errors.OpError) as error:
        fix = "Export it again with launch.export."
        raise checks.UserError(
            f"{directory} cannot be read: {_describe_damage(error)}. {fix}"
        ) from error
    with source.model.session.graph.as_default(), source.model.session:
        yield source


def _open_ids(directory: str, folder: str) -> Source:
    encode = encoder.Encoder(folder)
    raw = warm_up.predict_inputs(directory)
    requests = next((raw[name] for name in _NAMES if name in raw), [])
    encoded_requests = [encode(_split_lists(request)) for request in requests]
    model = loaded.open_export(folder)
    return Source(model, settings.DEFAULT, encoded_requests, lambda batch: encode(batch.values))


def _split_lists(raw: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return {feature: B values} from raw inputs, whose lists lose their padding."""
    lengths = {inputs.length_name(name): name for name in raw if inputs.length_name(name) in raw}
    columns: dict[str, Any] = {name: array for name, array in raw.items() if name not in lengths}
    for length, name in lengths.items():
        columns[name] = [row[:n] for row, n in zip(raw[name], raw[length], strict=True)]
    return columns


def needs_ids(directory: str) -> bool:
    """Return True if other runtimes can only run an export with ids as inputs.

    Args:
      directory: the folder of the export.

    Returns:
      True if the graph has operations on texts, or if no signature can be converted; else False.
    """
    requests = warm_up.predict_inputs(directory)
    name = next((name for name in _NAMES if name in requests), None)
    if name is None:
        return True
    with loaded.load_export(directory) as model:
        return bool(outside_ids.list_obstacles(freeze(model, name).graph_def))


def _describe_damage(error: Exception) -> str:
    """Return the cause in an error of TensorFlow, without names of places in the graph."""
    # TensorFlow's messages name the operation that failed as {{node name}}.
    lines = [line.strip() for line in re.sub(r"\{\{.*?\}\}", "", str(error)).splitlines()]
    causes = [line for line in lines if line and not line.startswith(_PLACES)]
    return (causes or [type(error).__name__])[0].partition(" [Op:")[0].rstrip(".:")


def freeze(model: loaded.Loaded, name: str) -> Frozen:
    """Return the graph of a signature, with weights as constants.

    Args:
      model: the loaded export, whose session holds the weights.
      name: the name of the signature.

    Returns:
      The graph after constant folding, with a placeholder for each input.
    """
    signature = model.signatures[name]
    inputs = {info.name: key for key, info in signature.inputs.items()}
    outputs = {info.name: key for key, info in signature.outputs.items()}
    names = [graphs.name_of(reference) for reference in (*outputs, *inputs)]
    graph = folding.fold_graph(model.session, names)
    for reference in inputs:
        node = graph.nodes[graphs.name_of(reference)]
        types = {key: node.attr[key] for key in ("dtype", "shape")}
        graph.set(node.name, "Placeholder", [], **types)
    return Frozen(graph, inputs, outputs)


def _compare_outputs(
    outputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    what: str,
    allowed: float,
    source: str,
) -> Iterator[float]:
    """Yield the difference between each output of another runtime and the expected output."""
    for key, target in expected.items():
        value = outputs[key]
        # With 8-bit weights, the predicted class may change if two classes are nearly equally
        # likely.
        if target.dtype.kind != "f" and allowed > verification.TOLERANCE:
            continue
        if target.dtype.kind in "OS":  # TensorFlow returns texts as bytes.
            target = np.char.decode(target.astype(bytes))
            is_bytes = any(isinstance(text, bytes) for text in value.flat)
            value = np.char.decode(value.astype(bytes)) if is_bytes else value.astype(str)
        where = f"output {key!r} of the {what}"
        yield verification.require_close(where, value, target, allowed, source)


def describe_lacking(model: Frozen, operations: Iterable[str]) -> str:
    """Return a list, as text, of operations that a runtime lacks and the columns that need them.

    Args:
      model: the frozen graph in which to look for the operations.
      operations: TensorFlow's names of the operations that the runtime lacks.
    """
    missing, of_column = set(operations), dict[str, set[str]]()
    for node in model.graph_def.node:
        column = outside_ids.find_column(node.name)
        features = sorted(map(repr, _list_inputs(model, node.name))) if node.op in missing else []
        if features and column:
            where = f" (column {column!r} of {', '.join(features)})"
            of_column.setdefault(where, set()).add(node.op)
    in_columns = set().union(*of_column.values())
    texts = [f"{', '.join(sorted(names))}{where}" for where, names in sorted(of_column.items())]
    other_operations = missing - in_columns - (_WITH_LOOKUPS if in_columns else set())
    return ", ".join([*texts, *sorted(other_operations)])


def _list_inputs(model: Frozen, name: str) -> list[str]:
    """Return the inputs of a signature that a node depends on."""
    reachable_nodes = {node.name for node in model.graph.pruned([name]).node}
    return [
        key for tensor, key in model.inputs.items() if graphs.name_of(tensor) in reachable_nodes
    ]


def describe_error(error: Any) -> str:
    """Return the first line with text in an error message."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)
