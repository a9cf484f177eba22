"""Checks an export before it is published, by loading its files like a server.

difference = verification.verify_export(path, held_out, expected)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.serving import loaded, rows, settings, signatures

TOLERANCE = 1e-5
"""The largest allowed difference of an output, relative if the prediction is above 1."""

_BATCHES = (7, 1)
# Matches ops that a server must not run: ops that need Python, draw random numbers, change
# variables, or feed training.
_UNFIT = re.compile(
    r"(Eager)?PyFunc(Stateless)?"
    r"|(Stateless)?(Random|Truncated|Parameterized|Multinomial)\w*"
    r"|(Resource)?(Sparse)?Apply[A-Z]\w*|Assign\w*|ResourceScatter\w*"
    r"|Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)|Iterator\w*|SaveV2"
)


class Expected(NamedTuple):
    """The outputs that an export must have for N rows.

    Attributes:
      outputs: {name: [N, ...]}, predictions "<task>/<name>" and passed-through features.
      takes_no_rows: True if the Estimator can predict an empty batch.
    """

    outputs: Mapping[str, np.ndarray]
    takes_no_rows: bool


class RefusedError(checks.UserError):
    """Raised if an export fails, or predicts other values than the Estimator."""


def verify_export(
    directory: str,
    held_out: rows.Rows,
    expected: Expected,
    allowed: float = TOLERANCE,
) -> float:
    """Load an export from its files, and compare its outputs with the Estimator's predictions.

    Args:
      directory: the folder of the SavedModel.
      held_out: the rows on which the export is checked, at least one.
      expected: the predictions of the Estimator for these rows.
      allowed: the largest allowed difference; above `TOLERANCE`, classes and texts are not
        compared.

    Returns:
      The largest difference of an output from the prediction of the Estimator.

    Raises:
      RefusedError: an output differs; a signature fails on all rows, 7 rows, 1 row or 0 rows; a
        malformed example is accepted; or the graph has ops that a server must not run.
    """
    with loaded.load_export(directory) as model:
        _require_fit(model.meta_graph)
        differences = [0.0]
        for batch in (len(held_out), *_BATCHES, *[0] * expected.takes_no_rows):
            for (name, key), value in _run_signatures(model, held_out.first(batch)):
                full_name = f"{name.removeprefix('raw/')}/{key}"
                # Look up predictions before passed-through features, which may have the name of an
                # output.
                prediction = expected.outputs.get(full_name, expected.outputs.get(key))
                where = f"output {key!r} of signature {name!r}"
                num_rows = min(batch, len(held_out))
                differences.append(_find_difference(where, value, prediction, num_rows, allowed))
        for description, example in _make_malformed(held_out):
            _require_refusal(model, description, example)
    return max(differences)


def _run_signatures(
    model: loaded.Loaded, batch: rows.Rows
) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    for raw in (False, True):
        names = sorted(name for name in model.signatures if signatures.is_raw(name) == raw)
        try:
            yield from model(names, batch.raw() if raw else batch.examples).items()
        except tf.errors.OpError as error:
            # Drop the beginning of the message, which names the node and the line of Python code.
            reason = re.sub(r"(?s).*\nNode: [^\n]*\n", "", error.message).splitlines()[0]
            raise RefusedError(
                f"the signatures {', '.join(names)} fail on {len(batch)} rows: {reason}"
            ) from error


def _find_difference(
    where: str, value: np.ndarray, expected: np.ndarray | None, num_rows: int, allowed: float
) -> float:
    """Return the largest difference from `expected` in the rows; 0 if `expected` is None."""
    if len(value) != num_rows:
        raise RefusedError(f"{where} has {len(value)} rows for {num_rows} rows of input.")
    if expected is None or not num_rows:
        return 0.0
    # Compare classes only for the whole batch without rounding: on a tie, a class may change.
    is_sure = num_rows == len(expected) and allowed <= TOLERANCE
    expected = expected[:num_rows]
    if value.dtype.kind != "f" and not is_sure and value.shape == expected.shape:
        return 0.0
    return require_close(where, value, expected, allowed)


def require_close(
    where: str,
    value: np.ndarray,
    wanted: np.ndarray,
    allowed: float = TOLERANCE,
    source: str = "the Estimator predicts",
) -> float:
    """Fail if two arrays differ too much; return their largest difference.

    If the absolute value of the expected number is above 1, the difference is divided by this
    absolute value. Equal infinities, and two NaNs, have the difference 0. A NaN or an infinity has
    an infinite difference from other values. Two different classes or texts have the difference 1.

    Args:
      where: the name of the output, for the error.
      value: the output of the export, [N, ...].
      wanted: the expected values of this output, [N, ...].
      allowed: the largest allowed difference.
      source: the words before the expected value in the error message.

    Raises:
      RefusedError: the difference is larger than `allowed`, or the shapes differ.
    """
    if value.shape != wanted.shape:
        raise RefusedError(f"{where} has shape {value.shape} in place of {wanted.shape}.")
    differences = _measure_rows(value, wanted)
    largest = float(differences.max(initial=0))
    if largest > allowed:
        row = np.unravel_index(differences.argmax(), differences.shape)[0]
        raise RefusedError(
            f"{where} is off by {largest:.2g}, but at most {allowed:g} is allowed: in held-out row "
            f"{row} it is {value[row]}, and {source} {wanted[row]}."
        )
    return largest


def _measure_rows(value: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    if value.dtype.kind != "f":
        return np.where(value == wanted, 0.0, 1.0)
    is_same = (value == wanted) | (np.isnan(value) & np.isnan(wanted))
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(value - wanted) / np.maximum(1, np.abs(wanted))
    return np.where(is_same, 0.0, np.nan_to_num(errors, nan=np.inf, posinf=np.inf))


def _make_malformed(held_out: rows.Rows) -> Iterator[tuple[str, bytes]]:
    """Yield (description, serialized example) of malformed examples that a server must refuse."""
    yield "that cannot be parsed", b"no example"
    fields = held_out.spec.feature_fields
    row = {name: held_out.values[name][0] for name in fields}
    required = (name for name, field in fields.items() if field.is_required)
    for name in list(required)[:1]:
        without = {other: value for other, value in row.items() if other != name}
        yield f"without field {name!r}", held_out.spec.serialize(without)
    for name, field in list(fields.items())[:1]:
        # Put a number into a field of texts, and a text into any other field.
        number, text = {"float_list": {"value": [0.5]}}, {"bytes_list": {"value": [b"?"]}}
        wrong = tf.train.Feature(**(number if field.dtype == "string" else text))
        example = tf.train.Example.FromString(held_out.spec.serialize(row))
        example.features.feature[name].CopyFrom(wrong)
        yield f"whose field {name!r} has another type", example.SerializeToString()


def _require_refusal(model: loaded.Loaded, description: str, example: bytes) -> None:
    try:
        model([settings.DEFAULT], [example])
    except tf.errors.InvalidArgumentError:
        return
    except tf.errors.OpError as error:
        problem = f"raises {type(error).__name__} instead of InvalidArgumentError"
        raise RefusedError(f"an example {description} {problem}.") from error
    raise RefusedError(
        f"an example {description} is served instead of raising InvalidArgumentError."
    )


def _require_fit(meta_graph: Any) -> None:
    """Fail if an output depends on an op that a server must not run."""
    for node in _list_served(meta_graph):
        # A FusedBatchNorm without the attribute is_training has the default, is_training = True.
        is_training = node.op.startswith("FusedBatchNorm") and not (
            "is_training" in node.attr and not node.attr["is_training"].b
        )
        if is_training or _UNFIT.fullmatch(node.op):
            raise RefusedError(
                f"the served graph holds an op of training: {node.op} {node.name!r}."
            )


def _list_served(meta_graph: Any) -> Iterator[Any]:
    """Yield all nodes that the outputs of signatures depend on, also nodes inside functions."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    # The bodies of loops and branches are functions, which are stored separately from the nodes.
    functions = {f.signature.name: f.node_def for f in meta_graph.graph_def.library.function}
    pending = [
        info.name
        for signature in meta_graph.signature_def.values()
        for info in signature.outputs.values()
    ]
    visited: set[str] = set()
    while pending:
        name = pending.pop().lstrip("^").partition(":")[0]
        if name in visited:
            continue
        visited.add(name)
        body = [nodes[name]] if name in nodes else functions[name]
        # The inputs of a function's nodes need no search, because all nodes of the function are
        # yielded.
        pending += body[0].input if name in nodes else ()
        for node in body:
            yield node
            pending += _list_functions(node) & functions.keys()


def _list_functions(node: Any) -> set[str]:
    """Return the names of the functions that a node may call."""
    values = node.attr.values()
    names = [function.name for value in values for function in value.list.func]
    return {node.op, *names, *(value.func.name for value in values)}
