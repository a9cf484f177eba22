"""Passes settings to code deep inside a graph without arguments, while the graph is built.

_PRUNED = ambient.Ambient("pruned", default={})          # at the end of the module that owns it
with _PRUNED.set(masks): ...                             # in this block, in this thread
_PRUNED.get()                                            # in a layer, for example

A user's network calls `layers.dense` and `get_variable`. The network does not know whether its
variables are frozen, quantised, cut into shards or cast, or which slice of the batch it sees. The
functions of `mtl.layers` read from ambient values how to treat variables. docs/ambient.md lists all
ambient values.

A training step sets the ambient values in this order, the outermost first:

1. `Distribution.distribute_model_fn` sets how tables are cut into shards, and separates replicas if
   `batch_norm` is "replica".
2. `MultiTaskModel.model_fn` sets whether the variables of equal tasks may be stacked.
3. `training_loop.run_repeatedly` sets the steps in which monitors record values.
4. `MultiTaskModel` sets which variables are frozen, then the precision, then the values of step
   extensions.
5. `moved.move` sets the moved variables, if a surgery measures affinities of tasks.
6. `whole_batch.build_batch` sets which slice of the batch is read, and separates replicas if there
   are several slices.
7. `ReadMoved` and then `MultiTaskModel` set how weights are quantised and which are frozen; with a
surgery of gradients, they also give each task separate ops.
8. A column sets the number type of its tables while the column looks up their rows.
9. `precision.run_network` sets the precision of the network.

Several ambient values change the value that a network reads from a variable. `views.Stage` lists
the changes in order: the value is replaced, moved, pruned, shared out, quantised, selected and
cast. In evaluation, prediction and export, only four ambient values are set: quantisation, the
storage of tables, the rows of random draws and stacked tasks.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Ambient(Generic[Value]):
    """A setting with a separate value in each thread, private to the module that defines it.

    TensorFlow builds each replica in a separate thread, so each replica has a separate value of an
    `Ambient`.

    Args:
      name: the name of the setting in a debugger.
      default: the value of the setting while no `with` block of `set` is open.
    """

    def __init__(self, name: str, default: Value):
        self._variable: contextvars.ContextVar[Value] = contextvars.ContextVar(
            name, default=default
        )

    def get(self) -> Value:
        """Return the value of the innermost open `set` block, or the default."""
        return self._variable.get()

    @contextlib.contextmanager
    def set(self, value: Value) -> Iterator[Value]:
        """Set the value for a `with` block, and restore the earlier value after it."""
        token = self._variable.set(value)
        try:
            yield value
        finally:
            self._variable.reset(token)
