"""Stores the weights of an export as float16 or int8; ops still compute in float32.

weights.pack_weights(graph, "int8")
"""

from __future__ import annotations

from typing import cast

import numpy as np

from mtl.deferred import tf
from mtl.serving import graphs

KINDS = ("float32", "float16", "int8")
# Smaller constants are not packed, because unpacking would cost more time than packing saves.
_MIN_ELEMENTS = 1024


def pack_weights(graph: graphs.Graph, kind: str) -> None:
    """Store large float32 constants with at least 2 axes in fewer bits.

    float16 rounds each weight. int8 rounds each weight to a multiple of a step size. For each index
    of the last axis, the step size is the largest absolute value of the weights, divided by 127.
    Only the rows of a table that are looked up are unpacked. Weights that are not looked up by rows
    are unpacked when they are used.

    Args:
      graph: a graph without variables, which this function changes.
      kind: "float16" or "int8".
    """
    readers = graph.readers()
    for name in [name for name in graph.nodes if _is_large(graph.value(name))]:
        value, lookups = cast(np.ndarray, graph.value(name)), readers[name]
        packed, step = _pack_weights(value, kind)
        # Leave the constant in float32 if a weight overflows float16, above 65504.
        if not np.isfinite(packed).all():
            continue
        if all(_looks_up(graph, node, name) for node in lookups):
            graph.set_constant(name, packed)
            for lookup in lookups:
                _unpack_rows(graph, lookup, step)
        else:
            source = graph.set_constant(f"{name}/packed", packed)
            _unpack_weights(graph, name, source, packed.dtype, step)


def _is_large(value: np.ndarray | None) -> bool:
    if value is None or value.dtype != np.float32:
        return False
    return value.ndim >= 2 and value.size >= _MIN_ELEMENTS


def _pack_weights(value: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the packed weights; for int8 also the step size of each index of the last axis."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return value.astype(np.float16), None
    step = np.abs(value).max(axis=tuple(range(value.ndim - 1))) / 127
    # Set the step of a channel of zeros to 1, because 0 / 0 would be NaN.
    step = np.where(step > 0, step, 1).astype(np.float32)
    return np.rint(value / step).astype(np.int8), step


def _looks_up(graph: graphs.Graph, node: tf.compat.v1.NodeDef, table: str) -> bool:
    """Return True if a node looks up rows of a table, so that the last axis of the table stays."""
    if node.op != "GatherV2" or node.input[0] != table or table in node.input[1:]:
        return False
    axis = graph.value(node.input[2])
    return axis is not None and int(axis) == 0


def _unpack_rows(
    graph: graphs.Graph, lookup: tf.compat.v1.NodeDef, step: np.ndarray | None
) -> None:
    """Let a lookup read packed rows, and unpack them in a node with the lookup's old name."""
    table = cast(np.ndarray, graph.value(lookup.input[0]))  # Packed by `pack_weights`.
    attributes = {**lookup.attr, "Tparams": tf.as_dtype(table.dtype)}
    source = graph.set(f"{lookup.name}/packed", lookup.op, list(lookup.input), **attributes)
    _unpack_weights(graph, lookup.name, source, table.dtype, step)


def _unpack_weights(
    graph: graphs.Graph, name: str, source: str, dtype: np.dtype, step: np.ndarray | None
) -> None:
    types = {"SrcT": tf.as_dtype(dtype), "DstT": tf.float32}
    if step is None:
        graph.set(name, "Cast", [source], **types)
        return
    cast = graph.set(f"{name}/cast", "Cast", [source], **types)
    graph.set(name, "Mul", [cast, graph.set_constant(f"{name}/step", step)], T=tf.float32)
