"""Values that hold while a part of the graph is being built, for code that they are not passed to.

_IS_HELD = ambient.Ambient("held", default=False)        # at the end of the module that owns it
with _IS_HELD.set(True): ...                             # from here on, in this thread
_IS_HELD.get()                                           # wherever a layer asks

A network of a user's calls `layers.dense` and `get_variable`; it does not know that its variables
are frozen, quantised, cut into shards or cast, nor which slice of the batch it sees. These settings
reach it from outside, and there are no others: docs/ambient.md lists them all.
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
