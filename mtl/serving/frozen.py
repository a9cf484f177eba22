"""Freezes a signature of an export for other runtimes: features as tensors, weights as constants.

with frozen_lib.load_intact(directory) as (model, name, requests):
    frozen = frozen_lib.freeze(model, name)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.serving import (
    folding,
    graphs,
    loaded,
    metadata,
    settings,
    verification,
    warm_up,
)

_NAMES = (f"{settings.RAW}/{settings.LEAN}", settings.RAW)

# Lines of TensorFlow's errors with these texts only give a place in the graph.
_NOT_TOLD = ("Graph execution error", "Detected at node", "Node:", "[[")

Requests = list[dict[str, np.ndarray]]


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
    """Return the signature "raw/lean" of an export, or "raw", and the warm-up requests for it.

    Raises:
      UserError: the export has neither.
    """
    requests = warm_up.predict_inputs(directory)
    name = next((name for name in _NAMES if name in requests), None)
    rule = f"hold the signature {_NAMES[-1]!r} and warm-up requests for it"
    if name is None:
        checks.fail("the export", rule, sorted(requests))
    return name, requests[name]


@contextlib.contextmanager
def load_intact(directory: str) -> Iterator[tuple[loaded.Loaded, str, Requests]]:
    """Load an export, yield it with the result of `find_requests`, and close it at the end.

    Raises:
      UserError: a file is missing or damaged, or the export has neither signature.
    """
    metadata.require_intact(directory)
    try:
        name, requests = find_requests(directory)
        model = loaded.open_export(directory)
    except (OSError, ValueError, tf.errors.OpError) as error:
        fix = "Export it again with launch.export."
        raise checks.UserError(
            f"{directory} cannot be read: {_describe_damage(error)}. {fix}"
        ) from error
    with model.session.graph.as_default(), model.session:
        yield model, name, requests


def _describe_damage(error: Exception) -> str:
    """Return the fault of a file, without the place in the graph that reads it."""
    lines = [line.strip() for line in re.sub(r"\{\{.*?\}\}", "", str(error)).splitlines()]
    told = [line for line in lines if line and not line.startswith(_NOT_TOLD)]
    return (told or [type(error).__name__])[0].partition(" [Op:")[0].rstrip(".:")


def freeze(model: loaded.Loaded, name: str) -> Frozen:
    """Return the graph of a signature."""
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


def compare_outputs(
    model: loaded.Loaded,
    name: str,
    given: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    what: str,
    allowed: float = verification.TOLERANCE,
) -> Iterator[float]:
    """Yield the difference of each output of another runtime from that of the export.

    If `allowed` is above `verification.TOLERANCE`, only numbers are compared.

    Raises:
      RefusedError: an output differs by more than `allowed`.
    """
    for (_, key), expected in model([name], given).items():
        value = found[key]
        if expected.dtype.kind != "f" and allowed > verification.TOLERANCE:
            continue
        if expected.dtype == object:  # TensorFlow returns text as bytes.
            expected = np.char.decode(expected.astype(bytes))
            is_bytes = any(isinstance(one, bytes) for one in value.flat)
            value = np.char.decode(value.astype(bytes)) if is_bytes else value.astype(str)
        where = f"output {key!r} of the {what}"
        yield verification.require_close(where, value, expected, allowed, "the export gives")


def describe_error(error: Any) -> str:
    """Return the first line of an error that holds information."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)
