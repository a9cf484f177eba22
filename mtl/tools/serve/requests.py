"""Checks that a request for predictions fits a signature, before the model gets the request.

request = requests.make_request(signature, {"age": ages}, outputs=[], most_rows=8192)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mtl import checks
from mtl.tools.serve import models, tensors


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that fits its signature.

    Attributes:
      signature: the signature that the request calls.
      inputs: {input: [B, ...]}, without inputs that use their default.
      outputs: the names of the outputs to compute.
      rows: the number of rows B.
    """

    signature: models.Signature
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[str]
    rows: int


def make_request(
    signature: models.Signature,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    most_rows: int,
) -> Request:
    """Check the names, types, shapes and rows of inputs, and make a request.

    Args:
      signature: the signature that the request calls.
      inputs: {input: array}.
      outputs: the names of the outputs to compute; [] for all outputs.
      most_rows: the largest allowed number of rows.

    Raises:
      UserError: an input or output does not fit the signature, or there are too many rows.
    """
    for name, array in inputs.items():
        require_input(signature, name)
        tensors.check_array(f"input {name!r}", array, signature.inputs[name])
    for name in outputs:
        checks.one_of(f"an output of {signature.name!r}", name, sorted(signature.outputs))
    checks.unique("the outputs", outputs)
    rows = _count_rows(signature, inputs)
    checks.require(rows <= most_rows, "a request", f"have at most {most_rows} rows", rows)
    # An input without rows stands for its default, so leave the input out. The graph repeats the
    # default for all rows, but an empty array would not fit the other inputs.
    filled_inputs = {
        name: array
        for name, array in inputs.items()
        if name not in signature.defaults or _has_rows(array, rows)
    }
    _require_all(signature, filled_inputs)
    return Request(signature, filled_inputs, list(outputs) or list(signature.outputs), rows)


def require_input(signature: models.Signature, name: str) -> None:
    """Fail unless a signature has an input with this name.

    Raises:
      UserError: no input has this name.
    """
    if name not in signature.inputs:
        names = ", ".join(signature.inputs)
        near = checks.nearest(name, signature.inputs)
        checks.fail(f"an input of {signature.name!r}", f"be one of {names}", name, near)


def _has_rows(array: np.ndarray, rows: int) -> bool:
    return not rows or bool(array.shape and len(array))


def _count_rows(signature: models.Signature, inputs: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows that all inputs have; inputs with a default may be empty."""
    counts = {name: len(array) if array.ndim else 0 for name, array in inputs.items()}
    rows = max(counts.values(), default=0)
    if signature.is_by_row:
        for name, count in counts.items():
            fits = count == rows or (not count and name in signature.defaults)
            checks.require(fits, f"input {name!r}", f"have {rows} rows, like other inputs", count)
    return rows


def _require_all(signature: models.Signature, inputs: Mapping[str, np.ndarray]) -> None:
    """Fail if an input without a default or the lengths of lists are missing."""
    missing = [n for n in signature.inputs if n not in inputs and n not in signature.defaults]
    if missing:
        names = ", ".join(map(repr, missing))
        received = ", ".join(inputs) or "none"
        raise checks.UserError(
            f"the signature {signature.name!r} needs the inputs {names}, got {received}."
        )
    for name, length in signature.lengths.items():
        # Without lengths, the graph would silently treat every list as empty.
        fits = name not in inputs or length in inputs or not inputs[name].size
        rule = f"come with {length!r}, the number of values of each row"
        checks.require(fits, f"input {name!r}", rule, f"no {length!r}")
        if name in inputs and length in inputs:
            _check_lengths(name, inputs[name], length, inputs[length])


def _check_lengths(name: str, lists: np.ndarray, length: str, lengths: np.ndarray) -> None:
    """Fail if the length of a list exceeds the number of columns L of the padded lists [B, L].

    The graph of the model also checks the lengths of lists. But after requests are joined, the
    graph only knows the number of columns of the widest request.
    """
    width = lists.shape[1]
    wrong = (lengths < 0) | (lengths > width)
    rule = f"be from 0 to {width}, the number of columns of {name!r}"
    checks.require(not wrong.any(), f"input {length!r}", rule, lengths[wrong].tolist()[:5])
