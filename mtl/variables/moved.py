"""Variables that lie elsewhere for one more pass, such as after a step that nobody takes.

with moved.move([kernel, table], [change, rows]):        # IndexedSlices change rows of a table
    losses = build_pass()                                # which enters `read_moved`

The variables themselves stay as they are.

Nothing is assigned, so a run that measures trains the same weights to the bit as a run that does
not. Only the rows of a table that the batch looks up are moved.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mtl import ambient, checks, types
from mtl.variables import patterns, sharding, views

tf1 = tf.compat.v1


class _Moved(NamedTuple):
    """What is added to the variables, by name, and the names of those that were read."""

    changes: dict[str, tf.Tensor | tf.IndexedSlices]
    read: set[str]


@contextlib.contextmanager
def move(
    variables: Sequence[tf.Variable], changes: Sequence[tf.Tensor | tf.IndexedSlices]
) -> Iterator[None]:
    """Have passes that are built within it read N variables with N changes added to them.

    The rows of IndexedSlices are all different.

    Raises:
      UserError: a pass did not ask for one of them by `get_variable`, so that it lies where it was.
    """
    names = map(patterns.variable_name, variables)
    moved = _Moved(dict(zip(names, changes, strict=True)), set())
    with _MOVED.set(moved):
        yield
    missed = sorted(moved.changes.keys() - moved.read)
    rule = "ask for its variables by `tf.compat.v1.get_variable` in every pass"
    checks.require(not missed, "MultiTaskModel.network", rule, missed[:3])


class ReadMoved(types.StepExtension):
    """Has the forward passes of a step read variables where `move` says."""

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del model, features, labels

    def wrap_forward(self, forward: types.Forward) -> types.Forward:
        """Return a forward pass within `read_moved`."""

        def moved(features: types.Tensors, labels: types.Tensors) -> Any:
            with read_moved():
                return forward(features, labels)

        return moved


def read_moved() -> contextlib.AbstractContextManager[Any]:
    """Have a pass read variables where `move` says; gives the scope that the pass is built in."""
    scope = tf1.get_variable_scope()
    if _MOVED.get() is None:
        return contextlib.nullcontext(scope)
    return views.enter(views.Stage.MOVED, _read)


def add_to_rows(rows: tf.Tensor, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Return looked-up rows [..., D] of ids [...] with what is added to their table."""
    moved = _MOVED.get()
    change = _find(moved, table)
    if moved is None or not isinstance(change, tf.IndexedSlices):
        return rows
    moved.read.add(patterns.variable_name(table))
    order = tf.argsort(change.indices)
    known, wanted = tf.gather(change.indices, order), tf.reshape(ids, [-1])
    # An id that no task has a gradient of is beside a known one, or behind the last.
    places = tf.searchsorted(known, tf.cast(wanted, known.dtype))
    places = tf.minimum(places, tf.size(known) - 1)
    is_known = tf.equal(tf.gather(known, places), tf.cast(wanted, known.dtype))
    found = tf.gather(tf.gather(change.values, order), places)
    added = tf.where(is_known[:, tf.newaxis], found, tf.zeros_like(found))
    return rows + tf.cast(tf.reshape(added, tf.shape(rows)), rows.dtype)


def _read(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
    variable, moved = getter(name, **settings), _MOVED.get()
    change = _find(moved, variable)
    # Of a table no step reads more than some rows: `add_to_rows` moves those.
    if moved is None or change is None or _is_table(change):
        return variable
    moved.read.add(patterns.variable_name(variable))
    value = tf.convert_to_tensor(variable)
    if isinstance(change, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(value, change.indices[:, tf.newaxis], change.values)
    return value + tf.cast(change, value.dtype)


def _find(moved: _Moved | None, variable: Any) -> tf.Tensor | tf.IndexedSlices | None:
    if moved is None or not isinstance(variable, tf.Variable):
        return None
    return moved.changes.get(patterns.variable_name(variable))


def _is_table(change: tf.Tensor | tf.IndexedSlices) -> bool:
    return sharding.is_table() and isinstance(change, tf.IndexedSlices)


_MOVED: ambient.Ambient[_Moved | None] = ambient.Ambient("moved variables", default=None)
