"""Freezes a signature of an export for other runtimes: features as tensors, weights as constants.

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

# The first signature has the fewest outputs to convert.
_NAMES = (f"{settings.RAW}/{settings.LEAN}", settings.RAW)

# Operations that come with lookups of columns, but lie outside of their scopes.
_WITH_LOOKUPS = {"HashTableV2", "LookupTableSizeV2"}

# Lines of TensorFlow's errors with these texts only give a place in the graph.
_PLACES = ("Graph execution error", "Detected at node", "Node:", "[[")

Requests = list[dict[str, np.ndarray]]

Run = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Runs a model in another runtime, {input: array} -> {output: array}."""


class Source(NamedTuple):
    """A signature that another runtime will compute.

    Attributes:
      model: the SavedModel with the signature.
      name: the name of the signature.
      requests: the inputs of the signature in the warm-up requests.
      encode: a function from rows to inputs of the signature.
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
        """Compare another runtime with the export and, row by row, with the checkpoint.

        If `allowed` is above `verification.TOLERANCE`, only numbers are compared.

        Args:
          run: the other runtime.
          what: the name of the file of the other runtime.
          held_out: rows with predictions of the checkpoint; None compares only the warm-up
            requests.
          allowed: the largest allowed difference.

        Returns:
          The largest difference.

        Raises:
          RefusedError: an output differs by more than `allowed`.
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
      graph: the graph.
      inputs: {tensor: feature}.
      outputs: {tensor: output of the signature}.
    """

    graph: graphs.Graph
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def graph_def(self) -> tf.compat.v1.GraphDef:
        """The nodes that the outputs need, and all inputs."""
        return self.graph.pruned([graphs.name_of(name) for name in (*self.outputs, *self.inputs)])


def find_requests(directory: str) -> tuple[str, Requests]:
    """Return the signature "raw/lean" of an export, or "raw", with its warm-up requests.

    Raises:
      UserError: the export has neither of the signatures.
    """
    requests = warm_up.predict_inputs(directory)
    name = next((name for name in _NAMES if name in requests), None)
    rule = f"hold the signature {_NAMES[-1]!r} and warm-up requests for it"
    if name is None:
        checks.fail("the export", rule, sorted(requests))
    return name, requests[name]


@contextlib.contextmanager
def load_intact(directory: str) -> Iterator[Source]:
    """Load the signature that other runtimes compute, and close the export at the end.

    This is the signature with ids, if the export holds it, and otherwise the signature of
    `find_requests`.

    Raises:
      UserError: a file is missing or damaged, or the export has none of the signatures.
    """
    metadata.require_intact(directory)
    folder = os.path.join(directory, portable.FOLDER, portable.IDS)
    has_ids = tf.io.gfile.isdir(folder)
    try:
        if has_ids:
            # The checksums of the export, which are checked above, include the files in `folder`.
            source = _open_ids(directory, folder)
        else:
            name, requests = find_requests(directory)
            model = loaded.open_export(directory)
            source = Source(model, name, requests, lambda some: some.raw())
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
    encoded = [encode(_split_lists(given)) for given in requests]
    model = loaded.open_export(folder)
    return Source(model, settings.DEFAULT, encoded, lambda some: encode(some.values))


def _split_lists(raw: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the columns of raw inputs, with lists without padding."""
    lengths = {inputs.length_name(name): name for name in raw if inputs.length_name(name) in raw}
    columns: dict[str, Any] = {name: array for name, array in raw.items() if name not in lengths}
    for length, name in lengths.items():
        columns[name] = [row[:n] for row, n in zip(raw[name], raw[length], strict=True)]
    return columns


def needs_ids(directory: str) -> bool:
    """Return True if other runtimes can run an export on ids, but not on raw features."""
    requests = warm_up.predict_inputs(directory)
    name = next((name for name in _NAMES if name in requests), None)
    if name is None:
        return True
    with loaded.load_export(directory) as model:
        return bool(outside_ids.list_obstacles(freeze(model, name).graph_def))


def _describe_damage(error: Exception) -> str:
    """Return the fault of a file, without the place in the graph that reads it."""
    # TensorFlow writes {{node name}} where the graph has the operation that failed.
    lines = [line.strip() for line in re.sub(r"\{\{.*?\}\}", "", str(error)).splitlines()]
    causes = [line for line in lines if line and not line.startswith(_PLACES)]
    return (causes or [type(error).__name__])[0].partition(" [Op:")[0].rstrip(".:")


def freeze(model: loaded.Loaded, name: str) -> Frozen:
    """Return the graph of a signature.

    Args:
      model: the export, whose session holds the weights.
      name: the signature.

    Returns:
      A graph with a placeholder for each input, folded, whose weights are constants.
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
    """Yield the difference of each output of another runtime from the expected output."""
    for key, target in expected.items():
        value = outputs[key]
        # With 8 bits, the predicted class may change if two classes are nearly equally likely.
        if target.dtype.kind != "f" and allowed > verification.TOLERANCE:
            continue
        if target.dtype.kind in "OS":  # TensorFlow returns text as bytes.
            target = np.char.decode(target.astype(bytes))
            is_bytes = any(isinstance(text, bytes) for text in value.flat)
            value = np.char.decode(value.astype(bytes)) if is_bytes else value.astype(str)
        where = f"output {key!r} of the {what}"
        yield verification.require_close(where, value, target, allowed, source)


def describe_lacking(made: Frozen, operations: Iterable[str]) -> str:
    """Return a text that lists operations and the columns that need them; "" without operations.

    Args:
      made: the graph that uses the operations.
      operations: the names of the operations in TensorFlow.
    """
    lacking, of_column = set(operations), dict[str, set[str]]()
    for node in made.graph_def.node:
        column = outside_ids.find_column(node.name)
        features = sorted(map(repr, _list_inputs(made, node.name))) if node.op in lacking else []
        if features and column:
            where = f" (column {column!r} of {', '.join(features)})"
            of_column.setdefault(where, set()).add(node.op)
    in_columns = set().union(*of_column.values())
    texts = [f"{', '.join(sorted(names))}{where}" for where, names in sorted(of_column.items())]
    others = lacking - in_columns - (_WITH_LOOKUPS if in_columns else set())
    return ", ".join([*texts, *sorted(others)])


def _list_inputs(made: Frozen, name: str) -> list[str]:
    """Return the inputs that a node depends on."""
    reached = {node.name for node in made.graph.pruned([name]).node}
    return [key for tensor, key in made.inputs.items() if graphs.name_of(tensor) in reached]


def describe_error(error: Any) -> str:
    """Return the first line of an error that is not empty."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)
