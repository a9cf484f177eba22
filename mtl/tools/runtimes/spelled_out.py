"""Replaces operations that other runtimes lack by operations that they support.

spelled_out.write_buckets(graph)         # Bucketize -> a count of the boundaries up to a value
spelled_out.write_logs(graph)            # Log1p -> Log
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtl.deferred import tf
from mtl.serving import graphs

# Operations around a logarithm of integers that may compute in float32 instead of float64.
_SHORT = {"Abs", "Cast", "Log1p", "Mul", "SelectV2", "Sign", "Sub", "ZerosLike"}


def write_buckets(graph: graphs.Graph) -> None:
    """Replace Bucketize by a count of the boundaries that are at most the value.

    Args:
      graph: the graph, which is rewritten in place.
    """
    for node in list(graph.nodes.values()):
        if node.op == "Bucketize":
            # Compare boundaries [boundaries] with values [..., 1]. The bucket is the number of
            # boundaries that are at most the value.
            boundaries = np.array(node.attr["boundaries"].list.f, np.float32)
            bounds = graph.set_constant(f"{node.name}/boundaries", boundaries)
            _count_bounds(graph, node.name, node.input[0], bounds, tf.float32, tf.int32)


def write_bounds(graph: graphs.Graph) -> None:
    """Replace UpperBound by a count of the bounds that are at most the value.

    Args:
      graph: the graph, which is rewritten in place.
    """
    for node in list(graph.nodes.values()):
        if node.op == "UpperBound":
            bounds, values = node.input
            # Compare bounds [rows, 1, boundaries] with values [rows, values, 1].
            bounds = _expand_axis(graph, f"{node.name}/boundaries", bounds, 1, node.attr["T"])
            _count_bounds(graph, node.name, values, bounds, node.attr["T"], node.attr["out_type"])


def write_logs(graph: graphs.Graph) -> None:
    """Replace Log1p of float32 by Log, without losing precision for values of at least 0.

    Log(1 + x) loses digits if x is small. With the rounded sum u = 1 + x, the term log(u) x / (u -
    1) keeps the digits (a formula of Kahan). If the sum u is 1, log(1 + x) is replaced by x itself.

    Args:
      graph: the graph, which is rewritten in place.
    """
    for node in list(graph.nodes.values()):
        if node.op == "Log1p" and node.attr["T"].type == tf.float32.as_datatype_enum:
            _write_log(graph, node.name, node.input[0])


def _write_log(graph: graphs.Graph, name: str, value: str) -> None:
    def make(part: str, op: str, *parts: str) -> str:
        return graph.set(f"{name}/{part}", op, parts, T=tf.float32)

    one = graph.set_constant(f"{name}/one", np.array(1, np.float32))
    total = make("total", "AddV2", value, one)
    log = make("log", "Log", total)
    rounded = make("rounded", "Sub", total, one)
    zero = graph.set_constant(f"{name}/zero", np.array(0, np.float32))
    vanishes = make("vanishes", "Equal", rounded, zero)
    divisor = make("divisor", "SelectV2", vanishes, one, rounded)
    ratio = make("ratio", "RealDiv", value, divisor)
    precise = make("precise", "Mul", log, ratio)
    small = make("small", "SelectV2", vanishes, value, precise)
    # For x above 1, the plain logarithm is precise enough. The plain logarithm is also right for
    # infinity, where the ratio x / (u - 1) is NaN.
    is_large = make("is_large", "Greater", value, one)
    graph.set(name, "SelectV2", [is_large, log, small], T=tf.float32)


def write_float32(graph: graphs.Graph) -> None:
    """Replace float64 by float32 in columns that standardise large integers, without a loss.

    TensorFlow Lite lacks float64, and OpenVINO rounds float64 to float32. To standardise integers,
    the integer part of their mean is subtracted from them as int64, which is exact. For logarithms
    of integers, float32 is precise enough. Operations of float64 outside of such columns stay
    unchanged.

    Args:
      graph: the graph, which is rewritten in place.
    """
    for node in list(graph.nodes.values()):
        if node.op == "Log1p" and _has_type(node, "T", tf.float64):
            _shorten_log(graph, node)
    for node in list(graph.nodes.values()):
        if (
            node.op == "Cast"
            and _has_type(node, "SrcT", tf.float64)
            and _has_type(node, "DstT", tf.float32)
        ):
            _subtract_whole(graph, node)
    for node in list(graph.nodes.values()):
        whole = None
        if node.op == "IsFinite" and _has_type(node, "T", tf.float64):
            whole = _as_whole(graph, node.input[0])
        if whole is not None:
            number = _cast_value(graph, f"{node.name}/number", whole, tf.int64, tf.float32)
            graph.set(node.name, "IsFinite", [number], T=tf.float32)


def _has_type(node: Any, key: str, dtype: tf.DType) -> bool:
    return graphs.attribute(node, key).type == dtype.as_datatype_enum


def _cast_value(
    graph: graphs.Graph, name: str, value: str, source_type: Any, target_type: Any
) -> str:
    return graph.set(name, "Cast", [value], SrcT=source_type, DstT=target_type)


def _shorten_log(graph: graphs.Graph, log: Any) -> None:
    """Compute a logarithm of integers and all connected operations in float32."""
    readers = graph.readers()
    part = _find_part(graph, log, readers)
    # Operations that are not in `_SHORT` may need the precision of float64.
    if not {node.op for node in part.values()} <= _SHORT:
        return
    for node in part.values():
        references = [_shorten_constant(graph, reference) for reference in node.input]
        attributes = {**dict(node.attr), _key_of_result(node): tf.float32}
        graph.set(node.name, node.op, references, **attributes)
    keys = {"Cast": "SrcT", "IsFinite": "T"}
    for reader in itertools.chain.from_iterable(readers.get(name, ()) for name in part):
        if reader.op in keys:
            attributes = {**dict(reader.attr), keys[reader.op]: tf.float32}
            graph.set(reader.name, reader.op, reader.input, **attributes)


def _find_part(graph: graphs.Graph, first: Any, readers: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return {name: node} for all nodes of type float64 that are connected with a given node."""
    queue, part = [first], dict[str, Any]()
    while queue:
        node = queue.pop()
        is_double = _has_type(node, _key_of_result(node), tf.float64)
        if node.name in part or node.op in ("Const", "IsFinite") or not is_double:
            continue
        part[node.name] = node
        queue += readers.get(node.name, [])
        if node.op != "Cast":
            queue += [graph.nodes[graphs.name_of(reference)] for reference in node.input]
    return part


def _key_of_result(node: Any) -> str:
    return "DstT" if node.op == "Cast" else "T"


def _shorten_constant(graph: graphs.Graph, reference: str) -> str:
    value = graph.value(reference)
    if value is None or value.dtype != np.float64:
        return reference
    return graph.set_constant(f"{reference}/float32", value.astype(np.float32))


def _subtract_whole(graph: graphs.Graph, cast: Any) -> None:
    """Replace float32(x - mean) by float32(x - floor(mean)) - rest, for an integer x."""
    difference = graph.nodes[graphs.name_of(cast.input[0])]
    mean = graph.value(difference.input[1]) if difference.op == "Sub" else None
    # If the mean is 2^62 or more, its floor or the limits below could overflow int64.
    if mean is None or not (np.abs(mean) < 2**62).all():
        return
    whole = _as_whole(graph, difference.input[0])
    if whole is None:
        return
    name, floor = cast.name, np.floor(mean).astype(np.int64)
    limits = np.iinfo(np.int64)
    ends = {
        "Maximum": limits.min + np.maximum(floor, 0),
        "Minimum": limits.max + np.minimum(floor, 0),
    }
    # If x lies between the limits in `ends`, x - floor does not overflow int64.
    clamped = whole
    for op, end in ends.items():
        bound = graph.set_constant(f"{name}/{op}/end", end)
        clamped = graph.set(f"{name}/{op}", op, [clamped, bound], T=tf.int64)
    shift = graph.set_constant(f"{name}/floor", floor)
    shifted = graph.set(f"{name}/shifted", "Sub", [clamped, shift], T=tf.int64)
    shifted = _cast_value(graph, f"{name}/number", shifted, tf.int64, tf.float32)
    # If x lies outside of the limits in `ends`, the difference of x and the mean is so large that
    # float32 is precise enough.
    far_difference = _cast_value(graph, f"{name}/far", whole, tf.int64, tf.float32)
    of_far = graph.set_constant(f"{name}/floor/float32", floor.astype(np.float32))
    far_difference = graph.set(f"{name}/far/shifted", "Sub", [far_difference, of_far], T=tf.float32)
    is_near = graph.set(f"{name}/is_near", "Equal", [clamped, whole], T=tf.int64)
    number = graph.set(
        f"{name}/chosen", "SelectV2", [is_near, shifted, far_difference], T=tf.float32
    )
    fraction = graph.set_constant(f"{name}/rest", (mean - floor).astype(np.float32))
    graph.set(name, "Sub", [number, fraction], T=tf.float32)


def _as_whole(graph: graphs.Graph, reference: str) -> str | None:
    """Return the integers that a tensor of float64 was cast from; None for other tensors."""
    node = graph.nodes[graphs.name_of(reference)]
    if node.op == "Cast":
        if _has_type(node, "SrcT", tf.int64):
            return node.input[0]
        is_whole = any(_has_type(node, "SrcT", dtype) for dtype in (tf.int32, tf.uint8, tf.bool))
        name, source_type = f"{node.name}/whole", node.attr["SrcT"]
        return _cast_value(graph, name, node.input[0], source_type, tf.int64) if is_whole else None
    if node.op != "SelectV2":
        return None
    check, _, other = (graph.nodes[graphs.name_of(part)] for part in node.input)
    is_check = (
        check.op == "IsFinite" and other.op == "ZerosLike" and check.input[0] == node.input[1]
    )
    return _as_whole(graph, node.input[1]) if is_check else None


def write_sums(graph: graphs.Graph, graph_def: tf.compat.v1.GraphDef) -> None:
    """Replace sums over lists, [N, D] -> [B, D], by a product with a 0-1 matrix [B, N].

    The rule of tf2onnx for UnsortedSegmentSum fails if all lists are empty, so the operation has to
    be replaced.

    Args:
      graph: the graph, which is rewritten in place.
      graph_def: the part of the graph that the outputs need, from which the shapes of tensors are
        inferred.
    """
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph_def, name="")
    for node in graph_def.node:
        if node.op != "UnsortedSegmentSum":
            continue
        # Only an imported graph has the shapes of tensors.
        values, owners, count = imported.get_operation_by_name(node.name).inputs
        if values.shape.rank == 2 and values.dtype == tf.float32:
            _sum_by_product(graph, node, owners.dtype, count.dtype)


def _sum_by_product(graph: graphs.Graph, node: Any, dtype: tf.DType, of_count: tf.DType) -> None:
    values, owners, count = node.input
    count = graph.set(f"{node.name}/count", "Cast", [count], SrcT=of_count, DstT=dtype)
    first, step = (
        graph.set_constant(f"{node.name}/from_{number}", np.array(number, dtype.as_numpy_dtype))
        for number in (0, 1)
    )
    places = graph.set(f"{node.name}/rows", "Range", [first, count, step], Tidx=dtype)
    places = _expand_axis(graph, f"{node.name}/column", places, 1, dtype)
    owners = _expand_axis(graph, f"{node.name}/owners", owners, 0, dtype)
    is_owner = graph.set(f"{node.name}/is_owner", "Equal", [places, owners], T=dtype)
    ones = graph.set(f"{node.name}/ones", "Cast", [is_owner], SrcT=tf.bool, DstT=tf.float32)
    graph.set(node.name, "MatMul", [ones, values], T=tf.float32)


def _count_bounds(
    graph: graphs.Graph, name: str, values: str, bounds: str, dtype: Any, count_dtype: Any
) -> None:
    """Make a node that counts the bounds at or below each value."""
    values = _expand_axis(graph, f"{name}/values", values, -1, dtype)
    is_passed = graph.set(f"{name}/passed", "GreaterEqual", [values, bounds], T=dtype)
    ones = graph.set(f"{name}/ones", "Cast", [is_passed], SrcT=tf.bool, DstT=count_dtype)
    axis = graph.set_constant(f"{name}/axis", np.array(-1, np.int32))
    graph.set(name, "Sum", [ones, axis], T=count_dtype, Tidx=tf.int32)


def _expand_axis(graph: graphs.Graph, name: str, values: str, axis: int, dtype: Any) -> str:
    place = graph.set_constant(f"{name}/axis", np.array(axis, np.int32))
    return graph.set(name, "ExpandDims", [values, place], T=dtype, Tdim=tf.int32)
