"""Select columns by name, and stack columns as vectors of equal width for interactions.

stacked = fields.stack_fields("FM", inputs, 8, training)                    # [B, F, 8]
columns = fields.choose_columns("PEPNet.domain", ["hashed_*"], inputs)      # {column: [B, D]}
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TypeVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.layers import copies

T = TypeVar("T")


def check_dimension(where: str, dimension: int | None) -> None:
    """Check a setting that holds the width of projected fields.

    Args:
      where: the name of the setting, used in error messages.
      dimension: the value of the setting: a width, or None, which is always valid.

    Raises:
      UserError: the width is not a whole number of at least 1.
    """
    if dimension is not None:
        checks.whole(where, dimension, 1)


def check_patterns(where: str, patterns: Sequence[str]) -> None:
    """Check a setting that selects columns by name.

    Args:
      where: the name of the setting, used in error messages.
      patterns: names of columns, in which `*` matches any text.

    Raises:
      UserError: `patterns` is not a list of texts, or holds a text twice.
    """
    checks.is_a(where, patterns, (list, tuple), "be a list of columns")
    for pattern in patterns:
        checks.is_a(where, pattern, str, "hold names of columns")
    checks.unique(where, patterns)


def choose_columns(where: str, patterns: Sequence[str], inputs: Mapping[str, T]) -> dict[str, T]:
    """Select the columns that match any of the patterns.

    Args:
      where: the name of the setting, used in error messages.
      patterns: names of columns, in which `*` matches any text.
      inputs: {column: a value of any kind}.

    Returns:
      {column: value}, in the order of the inputs.

    Raises:
      UserError: a pattern matches none of the columns.
    """
    for pattern in patterns:
        has_match = any(fnmatch.fnmatchcase(column, pattern) for column in inputs)
        fix = checks.nearest(pattern, inputs) or f"The columns are {', '.join(inputs)}."
        checks.require(has_match, where, "name columns", pattern, fix)
    return {
        column: value
        for column, value in inputs.items()
        if any(fnmatch.fnmatchcase(column, pattern) for pattern in patterns)
    }


def stack_fields(
    kind: str, inputs: types.Tensors, dimension: int | None, training: bool
) -> tf.Tensor:
    """Stack F columns as vectors of equal width, in the order of the inputs.

    If the width of a column differs from `dimension`, a matrix `field_<column>/projection/kernel`
    projects the column. So the value of a column of width 1 scales a learned vector, as in
    factorisation machines.

    Args:
      kind: the class of the trunk that reads the fields, used in error messages.
      inputs: columns that are vectors, {column: [B, D]}.
      dimension: the width of a field; None requires columns of equal width.
      training: True in a training step.

    Returns:
      The stacked vectors, [B, F, dimension].

    Raises:
      UserError: there are fewer than two columns, a column is not a vector, or widths differ and
        `dimension` is None.
    """
    columns = list(inputs)
    fix = f"{kind} compares columns with each other."
    checks.require(len(columns) > 1, f"{kind} inputs", "hold at least two columns", columns, fix)
    for column, value in inputs.items():
        require_vectors(kind, column, value)
    widths = {column: value.shape[-1] for column, value in inputs.items()}
    if dimension is None:
        fix = f"Set {kind}.dimension, to which columns of another width are projected."
        is_equal = len(set(widths.values())) == 1
        checks.require(is_equal, f"{kind} inputs", "have equal widths", widths, fix)
        return tf.stack(list(inputs.values()), axis=1)
    fields = {column: inputs[column] for column in columns if widths[column] == dimension}
    # Project columns of equal width together. Sort the widths, because a set has no order.
    for width in sorted(set(widths.values()) - {dimension}):
        names = [column for column in columns if widths[column] == width]
        fields |= zip(names, _project_columns(inputs, names, dimension, training), strict=True)
    return tf.stack([fields[column] for column in columns], axis=1)


def require_vectors(kind: str, column: str, value: tf.Tensor) -> None:
    """Check that a column holds vectors.

    Args:
      kind: the class of the trunk that reads the column, used in error messages.
      column: the name of the column, used in error messages.
      value: the encoded column, which should be [B, D].

    Raises:
      UserError: the shape is not [B, D] with a known D.
    """
    is_vector = value.shape.rank == 2 and value.shape[-1] is not None
    fix = f"Column {column!r} has that shape; give images to a Convnet or a ResNet."
    checks.require(is_vector, f"{kind} inputs", "be vectors", tuple(value.shape[1:]), fix)


def _project_columns(
    inputs: types.Tensors, columns: Sequence[str], dimension: int, training: bool
) -> list[tf.Tensor]:
    """Project columns of equal width, {column: [B, D]} -> F of [B, dimension]."""
    scopes = [f"field_{column}" for column in columns]
    values = [inputs[column] for column in columns]
    return copies.dense(values, dimension, "projection", scopes, training, use_bias=False)
