"""Runs a forward pass on shifted weights, such as the weights after a trial step.

with moved.move([kernel, table], [change, rows]):        # IndexedSlices shift table rows
    losses = build_pass()                                # a pass inside `read_moved`

The variables themselves do not change, because no op assigns them, so forward passes on shifted
weights do not affect training. In an embedding table, only the rows that the batch looks up are
shifted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mtl import ambient, checks, types
from mtl.deferred import tf, tf1
from mtl.variables import patterns, sharding, views


class _Moved(NamedTuple):
    """The changes of variables, by name, and the names of the variables that a pass has read."""

    changes: dict[str, tf.Tensor | tf.IndexedSlices]
    read: set[str]


@contextlib.contextmanager
def move(
    variables: Sequence[tf.Variable], changes: Sequence[tf.Tensor | tf.IndexedSlices]
) -> Iterator[None]:
    """Add N changes to N variables, in forward passes that are built within the context.

    Args:
      variables: N variables.
      changes: N changes: dense, or IndexedSlices in which each row occurs once.

    Raises:
      UserError: no pass has read a variable by `get_variable`, so its change is not applied.
    """
    names = map(patterns.variable_name, variables)
    changes_and_reads = _Moved(dict(zip(names, changes, strict=True)), set())
    with _MOVED.set(changes_and_reads):
        yield
    missed_names = sorted(changes_and_reads.changes.keys() - changes_and_reads.read)
    rule = "read its variables by `tf.compat.v1.get_variable` in every pass"
    checks.require(not missed_names, "MultiTaskModel.network", rule, missed_names[:3])


class ReadMoved(types.StepExtension):
    """Lets the forward passes of a step read variables with the changes of `move`."""

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del model, features, labels

    def wrap_forward(self, forward: types.Forward) -> types.Forward:
        """Return a forward pass that reads shifted variables."""

        def move_step(features: types.Tensors, labels: types.Tensors) -> Any:
            with read_moved():
                return forward(features, labels)

        return move_step


def read_moved() -> contextlib.AbstractContextManager[Any]:
    """Let forward passes within the context read shifted variables; yield the variable scope."""
    scope = tf1.get_variable_scope()
    if _MOVED.get() is None:
        return contextlib.nullcontext(scope)
    return views.enter(views.Stage.MOVED, _read_moved)


def add_to_rows(rows: tf.Tensor, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Add the changes that `move` has set for a table to looked-up rows of the table.

    Args:
      rows: the looked-up rows before the changes, [..., D].
      table: the variable.
      ids: the row numbers, [...].

    Returns:
      The shifted rows, [..., D].
    """
    changes_and_reads = _MOVED.get()
    change = _find_change(changes_and_reads, table)
    if changes_and_reads is None or not isinstance(change, tf.IndexedSlices):
        return rows
    changes_and_reads.read.add(patterns.variable_name(table))
    order = tf.argsort(change.indices)
    changed_ids, flat_ids = tf.gather(change.indices, order), tf.reshape(ids, [-1])
    # If a looked-up row has no change, `searchsorted` returns the place of another row, or the end.
    places = tf.searchsorted(changed_ids, tf.cast(flat_ids, changed_ids.dtype))
    places = tf.minimum(places, tf.size(changed_ids) - 1)
    is_known = tf.equal(tf.gather(changed_ids, places), tf.cast(flat_ids, changed_ids.dtype))
    row_changes = tf.gather(tf.gather(change.values, order), places)
    known_changes = tf.where(is_known[:, tf.newaxis], row_changes, tf.zeros_like(row_changes))
    return rows + tf.cast(tf.reshape(known_changes, tf.shape(rows)), rows.dtype)


def _read_moved(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
    variable, changes_and_reads = getter(name, **settings), _MOVED.get()
    change = _find_change(changes_and_reads, variable)
    # A step reads only some rows of a table, and `add_to_rows` shifts the rows that are read.
    if changes_and_reads is None or change is None or _is_table(change):
        return variable
    changes_and_reads.read.add(patterns.variable_name(variable))
    value = tf.convert_to_tensor(variable)
    if isinstance(change, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(value, change.indices[:, tf.newaxis], change.values)
    return value + tf.cast(change, value.dtype)


def _find_change(
    changes_and_reads: _Moved | None, variable: Any
) -> tf.Tensor | tf.IndexedSlices | None:
    if changes_and_reads is None or not isinstance(variable, tf.Variable):
        return None
    return changes_and_reads.changes.get(patterns.variable_name(variable))


def _is_table(change: tf.Tensor | tf.IndexedSlices) -> bool:
    return sharding.is_table() and isinstance(change, tf.IndexedSlices)


_MOVED: ambient.Ambient[_Moved | None] = ambient.Ambient("moved variables", default=None)
