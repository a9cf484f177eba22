"""Values that code reads without an argument, while a part of the graph is being built.

_PRUNED = ambient.Ambient("pruned", default={})          # at the end of the module that owns it
with _PRUNED.set(masks): ...                             # in this block, in this thread
_PRUNED.get()                                            # in a layer, for example

A user's network calls `layers.dense` and `get_variable`. It does not know whether its variables are
frozen, quantised, cut into shards or cast, or which slice of the batch it sees. These settings
reach it from outside. docs/ambient.md lists all of them.

A training step sets them in this order, the outermost first:

1. `Distribution.distribute_model_fn`: sharding; separate replicas with `batch_norm = "replica"`.
2. `MultiTaskModel.model_fn`: whether equal tasks may be stacked.
3. `training_loop.run_repeatedly`: the steps in which monitors are due.
4. `MultiTaskModel`: freezing, then precision, then the extensions of the step in their order.
5. `moved.move`, if a surgery measures affinities: the moved variables.
6. `whole_batch.build_batch`: the slice, and separate replicas if there are several slices.
7. `ReadMoved`, then `MultiTaskModel`: quantisation; under a surgery, separate tasks; frozen parts.
8. A column: the storage of its tables during lookup.
9. `precision.run_network`: the precision of the network.

Views of variables apply in a fixed order: replaced, moved, pruned, shared out, quantised, selected,
cast. Evaluation, prediction and export set only quantisation, the storage of tables, the rows of
random draws and stacked tasks.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Ambient(Generic[Value]):
    """A value for the current thread, private to the module that owns it.

    Each replica is built by its own thread, so it has its own value.

    Args:
      name: the name of the value in a debugger.
      default: the value outside of any `set`.
    """

    def __init__(self, name: str, default: Value):
        self._variable: contextvars.ContextVar[Value] = contextvars.ContextVar(
            name, default=default
        )

    def get(self) -> Value:
        """Return the innermost value that was set, or the default."""
        return self._variable.get()

    @contextlib.contextmanager
    def set(self, value: Value) -> Iterator[Value]:
        """Set the value for a `with` block, and restore the earlier value after it."""
        token = self._variable.set(value)
        try:
            yield value
        finally:
            self._variable.reset(token)
