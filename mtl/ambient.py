"""Values that hold while a part of the graph is being built, for code that they are not passed to.

_PRUNED = ambient.Ambient("pruned", default={})          # at the end of the module that owns it
with _PRUNED.set(masks): ...                             # from here on, in this thread
_PRUNED.get()                                            # wherever a layer asks

A network of a user's calls `layers.dense` and `get_variable`; it does not know that its variables
are frozen, quantised, cut into shards or cast, nor which slice of the batch it sees. These settings
reach it from outside, and there are no others: docs/ambient.md lists them all.

A training step enters values from the outside in:

1. `Distribution.distribute_model_fn`: sharding; separate replicas with `batch_norm = "replica"`.
2. `MultiTaskModel.model_fn`: whether equal tasks may be stacked.
3. `training_loop.run_repeatedly`: the steps in which monitors are due.
4. `MultiTaskModel`: freezing, then precision, then the extensions of the step in their order.
5. `moved.move`, if a surgery measures affinities: the moved variables.
6. `whole_batch.build_batch`: the slice, and separate replicas if there are several slices.
7. `ReadMoved`, then `MultiTaskModel`: quantisation; under a surgery, separate tasks; held parts.
8. A column: the storage of its tables during lookup.
9. `precision.run_network`: the precision of the network.

Views of variables apply by stage, not by order of entry: replaced, moved, pruned, shared out,
quantised, selected, cast. Evaluation, prediction and export enter only quantisation, the storage of
tables, the rows of draws and stacked tasks.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Ambient(Generic[Value]):
    """One such value, private to the module that owns it.

    Replicas are built by a thread each, so that every one has a value of its own.

    Args:
      name: says in a debugger what it is.
      default: holds where nothing was set.
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
        """Have `value` hold within the `with`; the one before holds again after it."""
        token = self._variable.set(value)
        try:
            yield value
        finally:
            self._variable.reset(token)
