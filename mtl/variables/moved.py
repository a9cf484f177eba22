"""Runs a forward pass on shifted variables, such as after a step that training does not take.

with moved.move([kernel, table], [change, rows]):        # IndexedSlices change rows of a table
    losses = build_pass()                                # which enters `read_moved`

The variables themselves do not change. No op assigns a variable, so a run that measures such passes
trains exactly the same weights. Only the rows of a table that the batch looks up are shifted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mtl import ambient, checks, types
from mtl.deferred import tf, tf1
from mtl.variables import patterns, sharding, views


class _Moved(NamedTuple):
    """The changes of variables, by name, and the names of the variables that were read."""

    changes: dict[str, tf.Tensor | tf.IndexedSlices]
    read: set[str]


@contextlib.contextmanager
def move(
    variables: Sequence[tf.Variable], changes: Sequence[tf.Tensor | tf.IndexedSlices]
) -> Iterator[None]:
    """Add N changes to N variables for the passes that are built within the context.

    The rows of IndexedSlices must all be different.

    Raises:
      UserError: a pass did not read a variable by `get_variable`, so it missed the change.
    """
    names = map(patterns.variable_name, variables)
    changes_and_reads = _Moved(dict(zip(names, changes, strict=True)), set())
    with _MOVED.set(changes_and_reads):
        yield
    missed_names = sorted(changes_and_reads.changes.keys() - changes_and_reads.read)
    rule = "ask for its variables by `tf.compat.v1.get_variable` in every pass"
    checks.require(not missed_names, "MultiTaskModel.network", rule, missed_names[:3])


class ReadMoved(types.StepExtension):
    """Makes the forward passes of a step read the variables that `move` shifts."""

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del model, features, labels

    def wrap_forward(self, forward: types.Forward) -> types.Forward:
        """Return a forward pass inside `read_moved`."""

        def move_step(features: types.Tensors, labels: types.Tensors) -> Any:
            with read_moved():
                return forward(features, labels)

        return move_step


def read_moved() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a pass reads shifted variables; it yields the variable scope."""
    scope = tf1.get_variable_scope()
    if _MOVED.get() is None:
        return contextlib.nullcontext(scope)
    return views.enter(views.Stage.MOVED, _read_moved)


def add_to_rows(rows: tf.Tensor, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Add the changes of a table to rows that were looked up in it.

    Args:
      rows: the rows as saved in the table, [..., D].
      table: the variable.
      ids: the numbers of the rows, [...].

    Returns:
      [..., D].
    """
    changes_and_reads = _MOVED.get()
    change = _find_change(changes_and_reads, table)
    if changes_and_reads is None or not isinstance(change, tf.IndexedSlices):
        return rows
    changes_and_reads.read.add(patterns.variable_name(table))
    order = tf.argsort(change.indices)
    changed_ids, flat_ids = tf.gather(change.indices, order), tf.reshape(ids, [-1])
    # For an id without a change, `searchsorted` returns the place of another id, or the end.
    places = tf.searchsorted(changed_ids, tf.cast(flat_ids, changed_ids.dtype))
    places = tf.minimum(places, tf.size(changed_ids) - 1)
    is_known = tf.equal(tf.gather(changed_ids, places), tf.cast(flat_ids, changed_ids.dtype))
    row_changes = tf.gather(tf.gather(change.values, order), places)
    known_changes = tf.where(is_known[:, tf.newaxis], row_changes, tf.zeros_like(row_changes))
    return rows + tf.cast(tf.reshape(known_changes, tf.shape(rows)), rows.dtype)


def _read_moved(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
    variable, changes_and_reads = getter(name, **settings), _MOVED.get()
    change = _find_change(changes_and_reads, variable)
    # A step reads only some rows of a table: `add_to_rows` shifts them.
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
